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

"""The check of a series that needs no Paddle."""

import inspect
import unittest

import wiring
from wiring_case import MODULE, WHY, WiringCase, a_patch


class TestCheck(WiringCase):
    def setUp(self):
        super().setUp()
        self.put({MODULE: '# Of x.\nx = 1\n'}, self.overlay)

    def check(self, edit, **fields):
        def whole(tree):
            tree.add(MODULE, why=WHY)
            edit(tree)

        return wiring.check(self.overlay, [a_patch(whole, **fields)])

    def test_nothing_wrong(self):
        def edit(tree):
            function = tree.file('part/other.py').function('f')
            function.insert_at_start('x = 1', why=WHY)
            function.swap_call(['g'], 'h({callee})', why=WHY)

        self.assertEqual(self.check(edit), [])
        self.assertEqual(
            wiring.edited_files([a_patch(edit)]), {'part/other.py'}
        )

    def test_records(self):
        for fields, problem in [
            ({'kind': 'eternal'}, 'expected a kind out of permanent, '),
            ({'kind': 'temporary'}, 'expected the link of a temporary patch'),
            ({'checked': '31.1.2026'}, 'expected a day YYYY-MM-DD'),
            ({'since': '3'}, 'expected a version X.Y.Z'),
        ]:
            with self.subTest(problem):
                [found] = self.check(lambda tree: None, **fields)
                self.assertIn(f'invented: {problem}', found)
        link = 'https://example.org/1'
        self.assertEqual(
            self.check(lambda tree: None, kind='temporary', link=link), []
        )

    def test_patch_without_record_or_docstring(self):
        def bare(tree):
            tree.add(MODULE, why=WHY)

        self.assertEqual(
            wiring.check(self.overlay, [bare]),
            ['bare: expected a record, found none'],
        )
        bare = wiring.patch(
            kind='permanent',
            checked='2026-01-31',
            since='3.3.0',
            mark=(MODULE, 'x'),
        )(bare)
        self.assertEqual(
            wiring.check(self.overlay, [bare]),
            ['bare: expected a docstring with the reason'],
        )

    def test_edits(self):
        def f(tree):
            return tree.file(MODULE).function('f')

        signature = inspect.signature(lambda text, *, why: None)
        with self.assertRaises(TypeError) as missing:  # Python's own words
            signature.bind('x')
        for edit, problem in [
            (
                lambda t: f(t).add_parameter('x', why=' '),
                f'{MODULE}: f: add_parameter: expected a reason, found none',
            ),
            (
                lambda t: f(t).add_parameter('x'),
                f'invented: {missing.exception}',
            ),
            (
                lambda t: f(t).add_paramter('x', why=WHY),
                f'invented: {MODULE}: f: there is no verb add_paramter',
            ),
            (
                lambda t: [f(t).add_parameter('x', why=w) for w in 'ab'],
                f'{MODULE}: f: add_parameter: the same edit twice',
            ),
            (
                lambda t: f(t).insert_at_start('if x:\n    y', why=WHY),
                f'{MODULE}: f: insert_at_start: expected one simple '
                f'statement, found: if x:\n    y',
            ),
            (
                lambda t: f(t).insert_at_start('if x:\n    return', why=WHY),
                f'{MODULE}: f: insert_at_start: expected one simple '
                f'statement, found: if x:\n    return',
            ),
            (
                lambda t: f(t).insert_at_start('x; y', why=WHY),
                f'{MODULE}: f: insert_at_start: expected one simple '
                f'statement, found: x; y',
            ),
            (
                lambda t: t.new('part/none.py', why=WHY),
                'part/none.py: expected our part of it, found none',
            ),
        ]:
            with self.subTest(problem):
                self.assertEqual(self.check(edit), [problem])

    def test_return_that_hangs_on_a_call(self):
        def edit(tree):
            function = tree.file(MODULE).function('f')
            function.insert_at_start('if _done(x):\n    return', why=WHY)

        self.assertEqual(self.check(edit), [])

    def test_code_that_does_not_parse(self):
        [problem] = self.check(
            lambda t: t.file(MODULE).function('f').insert_at_start('(', why=WHY)
        )
        self.assertIn('insert_at_start: expected Python', problem)

    def test_patches_of_one_name(self):
        patches = [a_patch(lambda t: t.add(MODULE, why=WHY))] * 2
        self.assertEqual(
            wiring.check(self.overlay, patches),
            [
                'invented: more than one patch of this name',
                'invented: add: the same edit twice',
            ],
        )

    def test_part_that_no_patch_brings(self):
        self.put({'part/lost.py': ''}, self.overlay)
        self.assertEqual(
            self.check(lambda tree: None),
            ['part/lost.py: no patch brings it into a tree'],
        )

    def test_what_a_part_would_lose(self):
        for text, problems in [
            ('# Head.\nimport a  # b\n# c\n\nx = 1\n# d\n\ny = 2  # e\n', []),
            (
                'x = 1\nprint(x)\n',
                [
                    ', line 2: expected an import, a definition or '
                    '"if TYPE_CHECKING:", found another statement'
                ],
            ),
            (
                'x = 1\n# lost\n',
                [', line 2: no definition takes this comment along'],
            ),
            (
                'x = 1\n# lost\nimport a\n',
                [', line 2: no definition takes this comment along'],
            ),
        ]:
            with self.subTest(text):
                self.put({MODULE: text}, self.overlay)
                self.assertEqual(
                    self.check(lambda tree: None),
                    [f'{MODULE}{problem}' for problem in problems],
                )


if __name__ == '__main__':
    unittest.main()
