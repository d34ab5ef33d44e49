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

"""Patches for `git am`, generated from a small invented checkout."""

import contextlib
import io
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

import series
from fork import cli, export
from fork.console import EXIT_OK, ForkError
from invented_case import HEADER, TESTS, TREE, InventedCase, put
from parameterized import parameterized

GLOB = """\
file(
  GLOB MODULES
  RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}"
  "test_*.py")
foreach(MODULE ${MODULES})
  py_test_modules(${MODULE} MODULES ${MODULE})
endforeach()
"""
FOLDERS = ('legacy_test', 'flex_checkpoint')


def cmake(folder):
    return f'test/{folder}/CMakeLists.txt'


class ExportCase(InventedCase):
    def setUp(self):
        super().setUp()
        self.environ(
            GIT_CONFIG_GLOBAL='/dev/null',
            GIT_CONFIG_NOSYSTEM='1',
            **{
                f'GIT_{who}_{what}': value
                for who in ('AUTHOR', 'COMMITTER')
                for what, value in (('NAME', 'A B'), ('EMAIL', 'a@b.example'))
            },
        )
        self.checkout = self.folder / 'checkout'
        self.output = self.folder / 'patches'
        put(TREE, self.checkout / 'python')
        put({'paddle/load.cc': '', 'README': ''}, self.checkout)
        put({cmake(folder): GLOB for folder in FOLDERS}, self.checkout)
        self.git('init', '--quiet', '--initial-branch=main')
        self.commit()

    def git(self, *args):
        done = subprocess.run(
            ['git', '-C', self.checkout, *args], capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.strip()

    def commit(self):
        self.git('add', '--all')
        self.git('commit', '--quiet', '--allow-empty', '--message=base')

    def export(self):
        """The patch files, in order."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = export.export(self.project, self.checkout, self.output)
        self.assertEqual(code, EXIT_OK)
        paths = sorted(self.output.iterdir())
        self.assertEqual(printed.getvalue().splitlines(), [*map(str, paths)])
        return paths

    def assert_refused(self):
        """Nothing is exported; -> the message."""
        with self.assertRaises(ForkError) as caught:
            self.export()
        self.assertEqual(list(self.output.glob('0*')), [])
        return str(caught.exception)

    def run_tests(self, *names):
        """Runs tests of the checkout, as Paddle's build does."""
        for name in names:
            path = self.checkout / 'test' / name
            done = subprocess.run(
                [sys.executable, '-m', 'unittest', path.stem],
                cwd=path.parent,
                env={
                    'PYTHONPATH': str(self.checkout / 'python'),
                    'PYTHONDONTWRITEBYTECODE': '1',
                },
                capture_output=True,
                text=True,
            )
            self.assertEqual(done.returncode, 0, done.stderr)


class TestSeries(ExportCase):
    def test_each_patch_applies_and_passes_its_tests(self):
        first, second = self.export()
        self.assertEqual(first.name, '0001-io-see-what-is-loaded.patch')
        self.assertEqual(second.name, '0002-pot-pour.patch')
        self.git('am', '--quiet', first)
        self.run_tests('legacy_test/test_seen.py')
        self.assertEqual(
            self.git('diff', '--name-only', 'HEAD~').split(),
            [
                'python/paddle/framework/io.py',
                'test/legacy_test/seen_case.py',
                'test/legacy_test/test_seen.py',
            ],
        )
        text = (self.checkout / 'python/paddle/framework/io.py').read_text()
        self.assertNotIn('_shared', text)
        self.git('am', '--quiet', second)
        self.run_tests(*(name for name in TESTS if '/test_' in name))
        self.assertEqual(self.git('status', '--porcelain'), '')
        for name, content in TESTS.items():
            self.assertEqual(
                (self.checkout / 'test' / name).read_text(), content, name
            )

    def test_messages(self):
        self.git('am', '--quiet', *self.export())
        self.assertEqual(
            self.git('log', '-2', '--format=%an <%ae>%n%B').split('\n\n'),
            [
                'A B <a@b.example>\npot: pour',
                'Measured: 2 cups.',
                'A B <a@b.example>\nio: see what is loaded',
                'It could not be seen.',
                'Measured: 1 s.',
            ],
        )

    def test_the_checkout_is_only_read(self):
        def state():
            return {
                path: path.read_bytes()
                for path in self.checkout.rglob('*')
                if path.is_file()
            }

        before = state()
        self.export()
        self.assertEqual(state(), before)

    def test_settings_of_the_user(self):
        def parts():
            # All but the lines that name the commit.
            return [
                path.read_text().split('\n', 1)[1] for path in self.export()
            ]

        self.environ(GIT_COMMITTER_DATE='@1 +0000', GIT_AUTHOR_DATE='@1 +0000')
        expected = parts()
        self.output = self.folder / 'again'
        for name, value in (
            ('core.abbrev', '4'),
            ('diff.context', '0'),
            ('diff.noprefix', 'true'),
            ('diff.suppressBlankEmpty', 'true'),
            ('format.cc', 'any@b.example'),
            ('format.from', 'any <any@b.example>'),
            ('format.headers', 'Any: 1'),
            ('format.noprefix', 'true'),
            ('format.signOff', 'true'),
            ('format.signature', 'any'),
            ('format.suffix', '.txt'),
            ('format.to', 'any@b.example'),
            ('format.useAutoBase', 'true'),
            ('diff.mnemonicPrefix', 'true'),
            ('format.attach', 'true'),
            ('format.coverLetter', 'true'),
            ('format.subjectPrefix', 'ANY'),
            ('format.outputDirectory', str(self.folder)),
            ('color.ui', 'always'),
            ('core.autocrlf', 'false'),
        ):
            self.git('config', name, value)
        self.assertEqual(parts(), expected)
        self.git('am', '--quiet', *sorted(self.output.iterdir()))
        self.assertEqual(
            self.git('log', '-1', '--format=%s', '--no-color'), 'pot: pour'
        )

    def test_three_way_merge_beside_other_changes(self):
        patches = self.export()
        path = self.checkout / 'python/paddle/framework/io.py'
        path.write_text('# Something new.\n' * 9 + path.read_text())
        self.commit()
        self.git('am', '--quiet', '--3way', *patches)
        self.run_tests('legacy_test/test_seen.py')

    def test_modes_are_kept(self):
        path = self.checkout / 'python/paddle/framework/io.py'
        path.chmod(0o755)
        self.commit()
        self.git('am', '--quiet', *self.export())
        self.assertTrue(path.stat().st_mode & 0o100)


class TestCMake(ExportCase):
    def test_folders_that_glob_need_no_line(self):
        self.git('am', '--quiet', *self.export())
        self.assertEqual(self.git('diff', 'HEAD~2', '--', '*.txt'), '')

    def test_folders_that_do_not_glob(self):
        put({cmake('legacy_test'): '# Nothing yet.\n'}, self.checkout)
        self.commit()
        self.git('am', '--quiet', *self.export())
        self.assertEqual(
            (self.checkout / cmake('legacy_test')).read_text(),
            '# Nothing yet.\npy_test_modules(test_seen MODULES test_seen)\n',
        )
        self.assertEqual(
            (self.checkout / cmake('flex_checkpoint')).read_text(), GLOB
        )

    def test_no_such_folder(self):
        (self.checkout / cmake('flex_checkpoint')).unlink()
        self.commit()
        self.assertIn(cmake('flex_checkpoint'), self.assert_refused())


class TestRefusals(ExportCase):
    def test_no_repository(self):
        (self.checkout / '.git').rename(self.folder / 'git')
        self.environ(GIT_CEILING_DIRECTORIES=str(self.folder))
        self.assertIn('expected a git repository', self.assert_refused())

    def test_a_folder_inside_a_repository(self):
        self.checkout = self.checkout.rename(self.folder / 'inner')
        (self.folder / 'checkout').mkdir()
        self.checkout.rename(self.folder / 'checkout' / 'inner')
        self.checkout = self.folder / 'checkout' / 'inner'
        (self.checkout / '.git').rename(self.checkout.parent / '.git')
        self.assertIn('expected a git repository', self.assert_refused())

    def test_git_tells_why_it_refuses(self):
        (self.checkout / '.git/config').write_text(
            '[core]\nrepositoryformatversion = 77\n'
        )
        self.assertRegex(
            self.assert_refused(), '(?s)but this is none; git says:.* 77'
        )

    def test_git_that_writes_nothing(self):
        path = self.folder / 'bin' / 'git'
        path.parent.mkdir()
        git = shutil.which('git')
        path.write_text(
            '#!/bin/sh\n'
            f'case "$*" in *format-patch*) ;; *) exec {git} "$@" ;; esac\n'
        )
        path.chmod(0o755)
        self.environ(PATH=f'{path.parent}{os.pathsep}{os.environ["PATH"]}')
        self.assertIn('it wrote none', self.assert_refused())

    def test_no_commit(self):
        (self.checkout / '.git').rename(self.folder / 'git')
        self.git('init', '--quiet')
        self.assertIn('expected a commit', self.assert_refused())

    def test_nobody(self):
        self.environ(GIT_COMMITTER_EMAIL='', GIT_COMMITTER_NAME='')
        self.assertIn('user.name', self.assert_refused())

    def test_changes_that_are_not_committed(self):
        with (self.checkout / 'python/paddle/framework/io.py').open('a') as f:
            f.write('x = 1\n')
        self.assertRegex(
            self.assert_refused(), r'these differ: framework/io\.py$'
        )

    def test_bad_usage_is_2(self):
        with self.assertRaises(SystemExit) as ended:
            cli.main(['export', str(self.checkout)])
        self.assertEqual(ended.exception.code, 2)
        output = str(self.folder / 'none')
        self.assertEqual(
            cli.main(['export', str(self.folder), '--output', output]), 2
        )

    def test_destinations_that_are_no_directory(self):
        self.output = self.folder / 'file'
        self.output.touch()
        for output in (self.output, self.output / 'patches'):
            self.output = output
            self.assertIn(f'{output}: expected a dir', self.assert_refused())

    def test_destination_that_is_read_only(self):
        # What root asks of a directory's mode is always granted.
        self.enter(mock.patch('os.access', return_value=False))
        self.assertIn(f'{self.folder} is read-only', self.assert_refused())

    def test_patches_in_the_way(self):
        self.output.mkdir()
        (self.output / 'older.patch').touch()
        self.assertIn('no *.patch', self.assert_refused())

    def test_a_test_of_the_same_name(self):
        put({'test/legacy_test/test_seen.py': HEADER}, self.checkout)
        self.commit()
        self.assertIn('legacy_test/test_seen.py', self.assert_refused())

    def test_a_tree_that_does_not_fit(self):
        path = self.checkout / 'python/paddle/framework/io.py'
        path.write_text(path.read_text().replace('stat', 'lstat'))
        self.commit()
        self.assertIn('nothing to export', self.assert_refused())
        self.errors.seek(0)
        self.assertIn('see: failed', self.errors.read())

    def test_a_tree_that_has_the_series(self):
        self.git('am', '--quiet', *self.export())
        self.output = self.folder / 'again'
        self.assertIn('nothing to export', self.assert_refused())

    def test_a_pattern_without_tests(self):
        (self.project.root / 'test/flex_checkpoint/test_pot.py').unlink()
        self.assertIn('test_pot.py', self.assert_refused())


class TestRealSeries(unittest.TestCase):
    """What the export needs of the patches and tests of this project."""

    TESTS = Path(__file__).resolve().parents[1]

    def test_each_test_belongs_to_one_patch(self):
        """A new file is named in `tests=` of its patch in tools/series."""
        owners = {
            path.relative_to(self.TESTS).as_posix(): []
            for folder in FOLDERS
            for path in (self.TESTS / folder).glob('*.py')
        }
        for patch in series.PATCHES:
            for name in export.tests_of(patch, self.TESTS):
                owners[name].append(patch.__name__)
        for name, patches in owners.items():
            self.assertEqual(len(patches), 1, f'{name}: {patches}')

    @parameterized.expand([(p.__name__, p) for p in series.PATCHES])
    def test_message(self, _, patch):
        subject, blank, *body = export.message_of(patch).splitlines()
        self.assertRegex(subject, r'\A[a-z_]+: \S')
        self.assertLessEqual(len(subject), 72)
        self.assertEqual(blank, '')
        self.assertTrue(any(x.startswith('Measured') for x in body), body)
        self.assertLessEqual(max(map(len, body)), 76)

    def test_files_have_the_header_of_the_project(self):
        overlay = self.TESTS.parent / 'python' / 'paddle'
        header = Path(__file__).read_text().partition('\n\n')[0]
        for path in [
            *overlay.rglob('*.py'),
            *(p for name in FOLDERS for p in (self.TESTS / name).glob('*.py')),
        ]:
            self.assertTrue(path.read_text().startswith(header), path)


if __name__ == '__main__':
    unittest.main()
