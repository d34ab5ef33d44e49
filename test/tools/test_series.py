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

"""The series on invented trees and on the installed Paddle."""

import ast
import difflib
import sysconfig
import unittest
from pathlib import Path
from textwrap import dedent

import series
import wiring
from series.load_num_workers import load_num_workers
from wiring.versions import version_of
from wiring_case import WiringCase

OVERLAY = Path(__file__).resolve().parents[2] / 'python' / 'paddle'

# The stock wheel, which PYTHONPATH hides behind the fork tree.
SITE_PACKAGES = Path(sysconfig.get_path('purelib'))

IO = dedent('''\
    from __future__ import annotations

    import pickle
    from typing import TYPE_CHECKING

    from .io_utils import _open
    from .restricted import safe_load_pickle

    if TYPE_CHECKING:
        from typing import TypedDict

        from typing_extensions import NotRequired

        class _LoadOptions(TypedDict):
            lazy: NotRequired[bool]


    def _parse_load_config(configs):
        supported_configs = ['lazy']
        inner_config = Config(configs, supported_configs)
        return inner_config


    def load(path, **configs):
        """Load it.

        Options:
            (1) lazy (bool): Later.

        Returns:
            object
        """
        config = _parse_load_config(configs)
        with _open(path) as f:
            return pickle.load(f, encoding='latin1')


    def _legacy_load(path, **configs):
        config = _parse_load_config(configs)
        with _open(path) as f:
            return pickle.load(f, encoding='latin1')
    ''')

IO_UTILS = dedent('''\
    import os
    import pickle


    def _open(path):
        return open(path, 'rb')
    ''')


class TestInventedTrees(WiringCase):
    def setUp(self):
        super().setUp()
        self.overlay = OVERLAY
        self.put({'framework/io.py': IO, 'framework/io_utils.py': IO_UTILS})

    def plan_load(self):
        return self.plan(load_num_workers)

    def wired_io(self):
        plan = self.plan_load()
        self.assertTrue(plan.ok, plan.report())
        return plan.texts['framework/io.py'].decode()

    def test_restricted_unpickler_is_kept(self):
        """On a tree that loads through one, nothing goes around it."""
        restricted = IO.replace('pickle.load(f', 'safe_load_pickle(f')
        self.put({'framework/io.py': restricted})
        calls = [
            ast.unparse(node)
            for node in ast.walk(ast.parse(self.wired_io()))
            if isinstance(node, ast.Call) and 'pickle' in ast.unparse(node.func)
        ]
        wired = '_load_pickle(safe_load_pickle, path, f, config.num_workers)'
        self.assertEqual(calls, [wired, wired])

    def test_ordinary_unpickler(self):
        wired = ast.unparse(ast.parse(self.wired_io()))
        call = '_load_pickle(pickle.load, path, f, config.num_workers)'
        self.assertEqual(wired.count(call), 2)

    def test_second_time(self):
        plan = self.plan_load()
        self.put(plan.texts)
        again = self.plan_load()
        self.assertIsInstance(again.outcomes[0], wiring.AlreadyApplied)
        self.assertEqual(again.texts, {})

    def test_tree_with_a_num_workers_of_its_own(self):
        self.put(
            {
                'framework/parallel_pickle_load.py': '',
                'framework/io.py': IO.replace(
                    "['lazy']", "['lazy', 'num_workers']"
                ),
            }
        )
        plan = self.plan_load()
        self.assertEqual(plan.texts, {})
        report = plan.report()
        self.assertIn(
            'this tree already has framework/parallel_pickle_load.py', report
        )
        self.assertIn(
            "framework/io.py: in _parse_load_config: already has "
            "'num_workers' in supported_configs, which is not from this "
            'series',
            report,
        )

    def test_anchors_gone(self):
        """Each by its file, function, what was sought and how often found."""
        self.put({'framework/io.py': IO.replace('latin1', 'utf8')})
        causes = self.plan_load().outcomes[0].causes
        self.assertEqual(
            [(c.file, c.where) for c in causes],
            [('framework/io.py', 'load'), ('framework/io.py', '_legacy_load')],
        )
        for cause in causes:
            self.assertIn(
                "1 call of pickle.load(f, encoding='latin1')", str(cause)
            )
            self.assertIn('but found 0', str(cause))


class TestByItself(unittest.TestCase):
    def test_level_one(self):
        self.assertEqual(wiring.check(OVERLAY), [])

    def test_proven_versions_cover_what_is_edited(self):
        files = wiring.edited_files(series.PATCHES)
        proven = series.versions().proven
        self.assertEqual(sorted(proven), ['3.3.0', '3.3.1'])
        for version, hashes in proven.items():
            self.assertEqual(set(hashes), files, version)
            for name, digest in hashes.items():
                self.assertRegex(digest, r'\A[0-9a-f]{64}\Z', name)


@unittest.skipUnless(
    (SITE_PACKAGES / 'paddle' / 'framework' / 'io.py').is_file(),
    f'no Paddle is installed in {SITE_PACKAGES}',
)
class TestInstalledPaddle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.paddle = SITE_PACKAGES / 'paddle'
        cls.plan = wiring.plan(SITE_PACKAGES, OVERLAY)

    def edited(self):
        """Name, text before and text after of every file of Paddle's."""
        for name, change in self.plan.changes.items():
            if change.before is not None:
                yield name, change.before.decode(), change.after.decode()

    def test_every_patch_applies(self):
        for outcome in self.plan.outcomes:
            self.assertIsInstance(outcome, wiring.Applied, self.plan.report())
        edited = {name for name, _, _ in self.edited()}
        self.assertEqual(edited, wiring.edited_files(series.PATCHES))

    def test_version_is_proven(self):
        version = version_of(self.paddle)
        if version not in series.versions().proven:
            self.skipTest(f'Paddle {version} was never tested')
        self.assertIn(f'as Paddle {version}, proven', self.plan.report())

    def test_results_compile(self):
        for name, data in self.plan.texts.items():
            compile(data, name, 'exec', dont_inherit=True)

    def test_second_time(self):
        tree = WiringCase()
        tree.setUp()
        self.addCleanup(tree.doCleanups)
        tree.put({'framework/io.py': ''})
        needed = {'distributed/flex_checkpoint/dcp/utils.py'}
        for name in needed:
            tree.put({name: (self.paddle / name).read_bytes()})
        tree.put(self.plan.texts)
        again = wiring.plan(tree.root, OVERLAY)
        for outcome in again.outcomes:
            self.assertIsInstance(
                outcome, wiring.AlreadyApplied, again.report()
            )

    def test_only_the_lines_meant_are_replaced(self):
        """Paddle's lines stay or move in, but for calls that are changed."""
        gone = {
            # One call in load, one in _legacy_load; three signatures, two
            # calls that copied, five that hand on what need not be copied,
            # and the one that loads arrays of safetensors.
            'framework/io.py': 13,
            'framework/io_utils.py': 1,  # an import of several names
            'distributed/__init__.py': 0,
            # Two loads of the local restore, one of the reshard, four lines
            # in whose place the choice of check is called, the loop whose
            # end is logged, and the two by which offloaded arrays were
            # copied, in both.
            'distributed/flex_checkpoint/dcp/load_state_dict.py': 12,
        }
        found = {}
        for name, before, after in self.edited():
            before, after = (
                [line.lstrip() for line in text.splitlines()]
                for text in (before, after)
            )
            diff = difflib.ndiff(before, after)
            found[name] = sum(line.startswith('- ') for line in diff)
        self.assertEqual(found, gone)

    def test_signatures(self):
        name = 'distributed/flex_checkpoint/dcp/load_state_dict.py'
        functions = {
            s.name: s
            for s in ast.parse(self.plan.texts[name]).body
            if isinstance(s, ast.FunctionDef)
        }
        parameters = {
            name: ast.unparse(functions[name].args)
            for name in (
                'load_state_dict',
                'load_merged_state_dict',
                'merge_sharded_state_dict',
            )
        }
        for name, text in parameters.items():
            self.assertIn('num_workers: int | None=1', text, name)
        self.assertIn(
            'fast_resumable_check: bool=True', parameters['load_state_dict']
        )

    def test_every_data_file_is_read_with_num_workers(self):
        """Metadata files are read without it, data files always with it."""
        name = 'distributed/flex_checkpoint/dcp/load_state_dict.py'
        loads = [
            node
            for node in ast.walk(ast.parse(self.plan.texts[name]))
            if isinstance(node, ast.Call)
            and ast.unparse(node.func) == 'paddle.load'
        ]
        with_option = [
            load
            for load in loads
            if 'num_workers' in [k.arg for k in load.keywords]
        ]
        self.assertEqual(len(with_option), 4)
        for load in loads:
            if load not in with_option:
                self.assertEqual(len(load.args), 1)
                self.assertEqual(load.keywords, [])

    def test_checks_come_before_any_statement(self):
        checks = {
            'load_state_dict': 2,
            'load_merged_state_dict': 1,
            'merge_sharded_state_dict': 1,
        }
        name = 'distributed/flex_checkpoint/dcp/load_state_dict.py'
        for s in ast.parse(self.plan.texts[name]).body:
            count = checks.pop(getattr(s, 'name', ''), 0)
            self.assertLessEqual(
                {ast.unparse(line) for line in s.body[1 : 1 + count]}
                if count
                else set(),
                {
                    "require_bool('fast_resumable_check', "
                    'fast_resumable_check)',
                    'num_workers = _resolve_num_workers(num_workers)',
                },
            )
        self.assertEqual(checks, {})

    def test_public_name(self):
        tree = ast.parse(self.plan.texts['distributed/__init__.py'])
        [names] = [
            ast.literal_eval(s.value)
            for s in tree.body
            if isinstance(s, ast.Assign)
            and ast.unparse(s.targets[0]) == '__all__'
        ]
        self.assertEqual(names.count('load_state_dict_metadata'), 1)


if __name__ == '__main__':
    unittest.main()
