# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""Plans: outcomes, reports, versions, diffs, and what a tree may look like."""

import ast
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import wiring
from wiring.editing import Editor
from wiring.source import Source, SourceError, decode
from wiring.versions import sha256
from wiring_case import MODULE, WHY, WiringCase, a_patch


def append_tea(tree):
    tree.file(MODULE).append_item('teas', "'oolong'", why=WHY)


class TestBytes(WiringCase):
    """What is not touched stays as it is, whatever it is."""

    def edit(self, module):
        module.function('f').add_argument('g', 'x=1', why=WHY)
        module.function('f').insert_before_return('a = (\n    1\n)', why=WHY)

    def test_layouts_of_files(self):
        before = 'def f():\n\tg("é")\f\n\treturn  1  \n# ☕ end'
        after = (
            'def f():\n\tg("é", x=1)\f\n\ta = (\n\t    1\n\t)\n'
            '\treturn  1  \n# ☕ end'
        )
        for change in (
            lambda text: text.encode(),
            lambda text: b'\xef\xbb\xbf' + text.encode(),
            lambda text: text.replace('\n', '\r\n').encode(),
            lambda text: text.replace('\n', '\r\n').encode() + b'\r\n\r\n',
        ):
            with self.subTest(change(before)):
                self.assert_wired(change(before), self.edit, change(after))

    def test_files_that_are_refused(self):
        for data, what in [
            (
                b'def f():\r\n  g()\n',
                r'expected one kind of line end, but found both \n and',
            ),
            (
                b'x = 1\ry = 2\n',
                r'expected \n or \r\n line ends, but found a lone \r',
            ),
            (b'x = "\xff"\n', "expected UTF-8, but found 'utf-8' codec"),
            (
                b'def f(:\n',
                'expected a module that parses, but found invalid syntax',
            ),
        ]:
            with self.subTest(data):
                report = self.plan_edit(data, self.edit).report()
                self.assertIn(f'{MODULE}: in <module>: {what}', report)

    def test_no_file(self):
        plan = self.plan(a_patch(append_tea))
        self.assertIn(
            f'{MODULE}: in <module>: expected a module to edit, '
            f'but found no such file',
            plan.report(),
        )

    def test_offsets_of_every_node(self):
        """Against what ast itself cuts out, on a module with odd text."""
        text = (
            Path(__file__).read_bytes()
            + '"""é☕"""; é = [1, "☕", (2,)]\n'.encode()
        )
        text = decode(text)[0]
        source = Source(text)
        for node in ast.walk(source.tree):
            if hasattr(node, 'end_col_offset'):
                self.assertEqual(
                    source.code(node), ast.get_source_segment(text, node)
                )

    def test_result_is_the_same_each_time(self):
        editor = Editor(b'f(a)')
        editor.append(3, 'b')
        self.assertEqual(editor.result(), b'f(a, b)')
        self.assertEqual(editor.result(), b'f(a, b)')

    def test_source_error_is_chained(self):
        with self.assertRaises(SourceError) as caught:
            Source('x = (')
        self.assertIsInstance(caught.exception.__cause__, SyntaxError)


class TestOutcomes(WiringCase):
    def setUp(self):
        super().setUp()
        self.put({MODULE: "teas = ['mint']\n"})

    def test_applied(self):
        plan = self.plan(a_patch(append_tea))
        [outcome] = plan.outcomes
        self.assertIsInstance(outcome, wiring.Applied)
        self.assertEqual(
            outcome.edits,
            (wiring.Edit(MODULE, '<module>', 'append_item', WHY, False),),
        )
        self.assertEqual(plan.texts, {MODULE: b"teas = ['mint', 'oolong']\n"})
        self.assertIn(f'invented: applied to {MODULE}', plan.report())
        self.assertIn(f'append_item: {WHY}', plan.report(verbose=True))

    def test_nothing_is_written_by_a_plan(self):
        before = {p: p.read_bytes() for p in self.root.rglob('*.py')}
        self.plan(a_patch(append_tea)).diff()
        self.assertEqual(
            before, {p: p.read_bytes() for p in self.root.rglob('*.py')}
        )

    def test_already_applied(self):
        self.put({MODULE: 'teas = ["oolong"]\n'})
        plan = self.plan(a_patch(append_tea))
        self.assertTrue(plan.ok)
        self.assertEqual(plan.texts, {})
        self.assertIn('invented: already applied', plan.report())
        self.assertIn('nothing left to apply', plan.report())

    def test_done_by_somebody_else(self):
        (self.paddle / 'mark.py').unlink()
        self.put({MODULE: 'teas = ["oolong"]\n'})
        plan = self.plan(a_patch(append_tea))
        self.assertFalse(plan.ok)
        self.assertIn(
            f"{MODULE}: in <module>: already has 'oolong' in teas, "
            f'which is not from this series',
            plan.report(),
        )

    def test_refused_file(self):
        self.put({'part/other.py': ''})
        plan = self.plan(
            a_patch(lambda t: t.refuse('part/other.py', why='ours differs'))
        )
        self.assertIn(
            'this tree already has part/other.py: ours differs', plan.report()
        )

    def test_skipped(self):
        for needs, skipped in [
            ((MODULE, 'teas'), False),
            (('mark.py', 'ours'), False),
            ((MODULE, 'coffees'), True),
            (('part/none.py', 'x'), True),
        ]:
            with self.subTest(needs):
                plan = self.plan(a_patch(append_tea, needs=needs))
                [outcome] = plan.outcomes
                self.assertEqual(isinstance(outcome, wiring.Skipped), skipped)
                self.assertTrue(plan.ok)
        self.assertIn(
            'invented: skipped: part/none.py defines no x; '
            'fits Paddle 3.3.0 and later',
            plan.report(),
        )
        plan = self.plan(
            a_patch(append_tea),
            a_patch(append_tea, needs=('part/none.py', 'x')),
        )
        self.assertIn('but what is not skipped fits', plan.report())

    def test_every_miss_of_every_patch(self):
        def two(tree):
            tree.file(MODULE).function('f').swap_call(['g'], 'h()', why=WHY)
            tree.file(MODULE).append_item('cups', '1', why=WHY)

        def three(tree):
            tree.file('part/none.py').append_item('x', '1', why=WHY)
            tree.file('part/none.py').function('f').add_parameter('y', why=WHY)

        plan = self.plan(a_patch(append_tea), a_patch(two), a_patch(three))
        self.assertEqual(plan.texts, {})
        self.assertEqual(plan.diff(), '')
        self.assertEqual(
            [len(getattr(o, 'causes', ())) for o in plan.outcomes], [0, 2, 1]
        )
        self.assertIn(
            f'{MODULE}: in f: expected 1 top-level function, but found 0',
            plan.report(),
        )

    def test_foreign_work_is_told_first(self):
        (self.paddle / 'mark.py').unlink()

        def edit(tree):
            tree.file(MODULE).append_item('cups', '1', why=WHY)
            tree.file(MODULE).append_item('teas', "'mint'", why=WHY)

        [outcome] = self.plan(a_patch(edit)).outcomes
        self.assertEqual([c.foreign for c in outcome.causes], [True, False])

    def test_patches_build_on_each_other(self):
        def first(tree):
            tree.file(MODULE).append_item('teas', "'a'", why=WHY)

        def second(tree):
            tree.file(MODULE).append_item('teas', "'b'", after="'a'", why=WHY)

        plan = self.plan(a_patch(first), a_patch(second))
        self.assertEqual(plan.texts, {MODULE: b"teas = ['mint', 'a', 'b']\n"})
        self.assertEqual(plan.changes[MODULE].before, b"teas = ['mint']\n")

    def test_edits_that_overlap(self):
        self.put({MODULE: 'def f():\n    g(h(1))\n'})

        def edit(tree):
            f = tree.file(MODULE).function('f')
            f.swap_call(['g'], 'ours()', why=WHY)
            f.swap_call(['h'], 'ours()', why=WHY)

        self.assertIn(
            'two edits overlap in line 2', self.plan(a_patch(edit)).report()
        )

    def test_result_that_does_not_compile(self):
        self.put({MODULE: 'def f(x):\n    g(y for y in x)\n'})

        def edit(tree):
            tree.file(MODULE).function('f').add_argument('g', 'a=1', why=WHY)

        self.assertIn(
            'a module that compiles', self.plan(a_patch(edit)).report()
        )

    def test_patch_that_applies_twice(self):
        def edit(tree):
            tree.file(MODULE).put(0, 0, '# again\n')

        self.assertIn(
            'would not be a no-op the second time',
            self.plan(a_patch(edit)).report(),
        )

    def test_patch_without_record(self):
        self.assertIn(
            'append_tea: failed\n  expected a patch with a record',
            self.plan(append_tea).report(),
        )


class TestTrees(WiringCase):
    def test_not_a_paddle_tree(self):
        for missing in '__init__.py', 'framework/io.py':
            with self.subTest(missing):
                (self.paddle / missing).unlink()
                plan = self.plan(a_patch(append_tea))
                self.assertFalse(plan.ok)
                self.assertEqual(plan.texts, {})
                self.assertIn(
                    f'expected a Paddle Python tree (a directory that holds '
                    f'paddle/), but found no paddle/{missing}',
                    plan.report(),
                )
                with self.assertRaisesRegex(ValueError, 'Paddle Python tree'):
                    plan.write()
                self.put({missing: ''})

    def test_root_of_a_checkout(self):
        (self.root / 'python').mkdir()
        self.paddle.rename(self.root / 'python' / 'paddle')
        self.assertIn('did you mean', self.plan().report())


class TestVersions(WiringCase):
    def setUp(self):
        super().setUp()
        self.text = b'teas = []\n'
        self.put({MODULE: self.text})
        self.proven = {
            '3.3.0': {MODULE: sha256(self.text)},
            '3.3.1': {MODULE: sha256(self.text)},
            '3.3.2': {MODULE: sha256(b'other')},
        }

    def state(self, version):
        text = f"# generated\nfull_version    = '{version}'\n"
        self.put({'version/__init__.py': text})

    def header(self, patch=append_tea):
        plan = self.plan(a_patch(patch), proven=self.proven)
        return plan.report().splitlines()[0].removeprefix(f'{self.root}: ')

    def test_words(self):
        tested = '(proven: 3.3.0, 3.3.1, 3.3.2)'
        self.assertEqual(self.header(), 'as Paddle 3.3.0, proven')
        self.state('3.3.1')
        self.assertEqual(self.header(), 'as Paddle 3.3.1, proven')
        self.state('3.3.2')
        self.put({MODULE: 'teas = [1]\n'})
        self.assertEqual(
            self.header(),
            f'Paddle 3.3.2, but not as proven: {MODULE} differ, '
            f'but everything fits',
        )
        self.state('3.4.0')
        self.assertEqual(
            self.header(),
            f'Paddle 3.4.0, never tested {tested}, but everything fits',
        )
        (self.paddle / 'version/__init__.py').unlink()
        self.assertEqual(
            self.header(),
            f'a version never tested {tested}, but everything fits',
        )

    def test_anchor_gone(self):
        self.put({MODULE: 'coffees = []\n'})
        self.state('3.4.0')
        report = self.plan(a_patch(append_tea), proven=self.proven).report()
        self.assertNotIn('everything fits', report)
        self.assertIn('expected 1 list assigned to teas, but found 0', report)
        self.assertIn('proven for Paddle 3.3.0, 3.3.1, 3.3.2', report)

    def test_record(self):
        versions = wiring.Versions({})
        with self.assertRaisesRegex(ValueError, 'expected a version'):
            versions.record(self.paddle, [MODULE])
        self.state('3.3.1')
        self.assertEqual(versions.record(self.paddle, [MODULE]), '3.3.1')
        self.assertEqual(versions.proven, {'3.3.1': self.proven['3.3.1']})
        path = self.root / 'versions.json'
        versions.save(path)
        self.assertEqual(wiring.Versions.load(path), versions)


@unittest.skipUnless(shutil.which('git'), 'needs git')
class TestDiff(WiringCase):
    def test_git_applies_it(self):
        """The diff of all patches, and of each one after the other."""
        files = {
            MODULE: 'teas = []\n\ndef f():\n    g()',
            'part/b.py': 'x = []',
        }
        self.put(files)
        self.put({'part/new.py': 'new = 1'}, self.overlay)

        def one(tree):
            append_tea(tree)
            tree.new('part/new.py', why=WHY)

        def two(tree):
            tree.file(MODULE).function('f').add_argument('g', 'x=1', why=WHY)
            tree.file('part/b.py').append_item('x', '1', why=WHY)

        one, two = a_patch(one), a_patch(two)
        one.__name__, two.__name__ = 'one', 'two'
        plan = self.plan(one, two)
        for diffs in [plan.diff()], [plan.diff('one'), plan.diff('two')]:
            with tempfile.TemporaryDirectory() as directory:
                python = Path(directory) / 'python' / 'paddle'
                self.put(files, python)
                for diff in diffs:
                    subprocess.run(
                        ['git', 'apply', '-'],
                        input=diff.encode(),
                        cwd=directory,
                        check=True,
                    )
                for name, data in plan.texts.items():
                    self.assertEqual((python / name).read_bytes(), data)


if __name__ == '__main__':
    unittest.main()
