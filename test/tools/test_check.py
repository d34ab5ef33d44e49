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

"""The command `check`: which patches fit which trees."""

import contextlib
import io
import os
import unittest
import zipfile
from unittest import mock

import wiring
from fork import check, cli
from fork.console import ForkError
from fork.project import Project
from invented_case import TREE, InventedCase, put
from parameterized import parameterized

IO = 'paddle/framework/io.py'


class CheckCase(InventedCase):
    def setUp(self):
        super().setUp()
        self.tree = self.folder / 'tree'
        put(TREE, self.tree)

    def check(self, *trees):
        """Exit code and the lines printed."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = check.check(self.project, [str(tree) for tree in trees])
        return code, printed.getvalue().splitlines()

    def write_wheel(self, folder, version):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f'paddlepaddle-{version}-py3-none-any.whl'
        with zipfile.ZipFile(path, 'w') as archive:
            for name, text in TREE.items():
                archive.writestr(name, text)
            archive.writestr('paddle/libpaddle.so', 'machine code')
            archive.writestr('other/module.py', '')
        return path


class TestListing(CheckCase):
    def test_fits(self):
        code, lines = self.check(self.tree)
        self.assertEqual(code, 0)
        self.assertEqual(lines[1:], ['  see: fits', '  pour: fits'])
        self.assertIn('Paddle 9.9.1, never tested', lines[0])

    def test_is_there_already(self):
        wiring.plan(self.tree, self.project.overlay).write()
        code, lines = self.check(self.tree)
        self.assertEqual(code, 0)
        self.assertEqual(
            lines[1:], ['  see: is there already', '  pour: is there already']
        )

    def test_anchor_gone(self):
        text = TREE[IO].replace('os.stat', 'os.lstat')
        put({IO: text}, self.tree)
        code, lines = self.check(self.tree)
        self.assertEqual(code, 1)
        self.assertEqual(
            lines[1:],
            [
                '  see: does not fit',
                '    framework/io.py: in load: expected 1 call of '
                'os.stat(path) or _seen, but found 0',
                '  pour: fits, but needs see',
            ],
        )

    def test_a_feature_of_its_own(self):
        put({'paddle/framework/pot.py': 'theirs = 1\n'}, self.tree)
        code, lines = self.check(self.tree)
        self.assertEqual(code, 1)
        self.assertEqual(
            lines[2],
            '  pour: does not fit: the tree has such a feature of its own',
        )
        self.assertIn('already has another module of this name', lines[3])

    def test_another_version_of_the_series(self):
        """Its mark is there, one definition was edited."""
        wiring.plan(self.tree, self.project.overlay).write()
        path = self.tree / IO
        path.write_text(path.read_text().replace('stat(path)\n', 'stat(0)\n'))
        code, lines = self.check(self.tree)
        self.assertEqual(code, 1)
        self.assertEqual(
            lines[1:3],
            [
                '  see: does not fit: the tree has another version of this '
                'series',
                '    framework/io.py: in _seen: has another _seen, from '
                'another version of this series or edited since',
            ],
        )

    def test_not_for_this_tree(self):
        needing = wiring.patch(
            kind='permanent',
            checked='2026-01-31',
            since='9.9.2',
            mark=(IO, 'x'),
            needs=('framework/io.py', 'save'),
        )(lambda tree: self.fail('not to be run'))
        needing.__name__ = 'needing'
        self.enter(mock.patch('series.PATCHES', [needing]))
        code, lines = self.check(self.tree)
        self.assertEqual(code, 0)
        self.assertEqual(
            lines[1],
            '  needing: not for this tree: framework/io.py defines no save; '
            'fits Paddle 9.9.2 and later',
        )

    def test_all_trees_are_listed_and_one_that_fails_counts(self):
        other = self.folder / 'other'
        put({**TREE, IO: ''}, other)
        code, lines = self.check(other, self.tree)
        self.assertEqual(code, 1)
        self.assertEqual(
            [line.partition(':')[0] for line in lines if line[0] != ' '],
            [str(other), str(self.tree)],
        )

    def test_default_is_the_installed_one(self):
        with mock.patch.object(Project, 'base', return_value=self.tree):
            self.assertTrue(self.check()[1][0].startswith(str(self.tree)))


class TestSources(CheckCase):
    def test_wheel(self):
        code, lines = self.check(self.write_wheel(self.folder, '9.9.1'))
        self.assertEqual((code, lines[1]), (0, '  see: fits'))

    @parameterized.expand([('text', b'nothing'), ('empty', b'')])
    def test_a_file_that_is_no_wheel(self, _, content):
        path = self.folder / 'x.whl'
        path.write_bytes(content)
        with self.assertRaisesRegex(ForkError, 'x.whl: expected a wheel'):
            self.check(path)

    def test_bad_usage_is_2(self):
        self.assertEqual(cli.main(['check', 'no/such']), 2)

    def test_no_tree(self):
        with self.assertRaisesRegex(ForkError, 'no/such: expected a Paddle'):
            self.check('no/such')

    def fetch(self, requirement, folder):
        return self.write_wheel(folder, requirement.partition('==')[2])

    def test_a_version_is_fetched_once(self):
        with mock.patch.object(
            check, 'download_wheel', side_effect=self.fetch
        ) as fetch:
            first = self.check('9.9.1')
            second = self.check('9.9.1')
        self.assertEqual(first, second)
        self.assertEqual(first[0], 0)
        [call] = fetch.call_args_list
        self.assertEqual(call.args[0], 'paddlepaddle==9.9.1')
        kept = self.project.sources
        self.assertEqual(
            sorted(
                path.relative_to(kept).as_posix()
                for path in kept.rglob('*')
                if path.is_file()
            ),
            sorted(f'9.9.1/{name}' for name in TREE),
        )

    def test_what_could_not_be_fetched_leaves_nothing(self):
        def cut(requirement, folder):
            path = self.fetch(requirement, folder)
            path.write_bytes(path.read_bytes()[:-30])
            return path

        with (
            mock.patch.object(check, 'download_wheel', side_effect=cut),
            self.assertRaisesRegex(ForkError, 'expected a wheel'),
        ):
            self.check('9.9.1')
        self.assertEqual(list(self.project.sources.iterdir()), [])

    def test_a_directory_that_looks_like_a_version(self):
        self.tree.rename(self.folder / '9.9.1')
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        self.assertEqual(self.check('9.9.1')[0], 0)


class TestReleases(unittest.TestCase):
    """The real series on released versions, whose sources are kept."""

    def check(self, version):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                code = cli.main(['check', version])
            finally:
                text = printed.getvalue()
        if not text:
            self.skipTest(f'Paddle {version} could not be fetched')
        return code, text.splitlines()

    @parameterized.expand(['3.3.0', '3.3.1'])
    def test_proven(self, version):
        code, lines = self.check(version)
        self.assertEqual(code, 0)
        self.assertEqual(lines[0], f'{version}: as Paddle {version}, proven')
        for line in lines[1:]:
            self.assertRegex(line, r'\A  \w+: fits\Z')

    def test_older(self):
        code, lines = self.check('3.2.2')
        self.assertEqual(code, 0)
        verdicts = dict(line.strip().split(': ', 1) for line in lines[1:])
        self.assertEqual(verdicts['load_num_workers'], 'fits')
        for name, definition in (
            ('load_state_dict_num_workers', 'local_load_state_dict'),
            ('fast_resumable_check', 'check_resumable_locally'),
        ):
            self.assertIn('not for this tree', verdicts[name])
            self.assertIn(f'defines no {definition}', verdicts[name])


if __name__ == '__main__':
    unittest.main()
