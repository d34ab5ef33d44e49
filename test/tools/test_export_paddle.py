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

"""The exported series on the installed Paddle, made into a git repository.

Python files of the wheel stand for a checkout; after each patch a tree of
links to the wheel, with the files that the patches changed, stands for what
Paddle's build makes of that checkout.
"""

import contextlib
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import series
from fork import export, harness, link_tree
from fork.environment import clean_environ
from fork.project import Project
from test_export import FOLDERS, GLOB, cmake

SITE_PACKAGES = Path(sysconfig.get_path('purelib'))

# Far more than any takes, so that one that hangs is named.
MODULE_SECONDS = 300


@unittest.skipUnless(
    (SITE_PACKAGES / 'paddle' / 'framework' / 'io.py').is_file(),
    f'no Paddle is installed in {SITE_PACKAGES}',
)
class TestOnPaddle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix='paddle-export-test-')
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.checkout = cls.folder / 'checkout'
        identity = {
            f'GIT_{who}_{what}': f'{what}@example'
            for who in ('AUTHOR', 'COMMITTER')
            for what in ('NAME', 'EMAIL')
        }
        patcher = mock.patch.dict(
            os.environ,
            GIT_CONFIG_GLOBAL='/dev/null',
            GIT_CONFIG_NOSYSTEM='1',
            **identity,
        )
        patcher.start()
        cls.addClassCleanup(patcher.stop)
        paddle = SITE_PACKAGES / 'paddle'
        for path in paddle.rglob('*.py'):
            copy = cls.checkout / 'python/paddle' / path.relative_to(paddle)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        for name in FOLDERS:
            path = cls.checkout / cmake(name)
            path.parent.mkdir(parents=True)
            path.write_text(GLOB)
        cls.git('init', '--quiet')
        cls.git('add', '--all', '--force')
        cls.git('commit', '--quiet', '--message=base')
        cls.git('tag', 'base')
        with contextlib.redirect_stdout(io.StringIO()):
            export.export(Project(), cls.checkout, cls.folder / 'patches')

    @classmethod
    def git(cls, *args):
        return subprocess.run(
            ['git', '-C', cls.checkout, *args],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    def build(self):
        """The tree that a build of the checkout as it is would give."""
        changed = self.git('diff', '--name-only', 'base', '--', 'python')
        texts = {
            name.removeprefix('python/paddle/'): (
                self.checkout / name
            ).read_bytes()
            for name in changed.split()
        }
        tree = self.folder / 'tree'
        link_tree.build_tree(SITE_PACKAGES / 'paddle', texts, tree, '')
        return tree

    def run_tests(self, names):
        tree = self.build()
        for name in names:
            path = self.checkout / 'test' / name
            if not path.name.startswith('test_'):
                continue
            with self.subTest(name):
                done = subprocess.run(
                    [sys.executable, '-m', 'unittest', path.stem],
                    cwd=path.parent,
                    env=clean_environ(
                        PYTHONPATH=str(tree), PYTHONDONTWRITEBYTECODE='1'
                    ),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=MODULE_SECONDS,
                )
                self.assertEqual(done.returncode, 0, done.stdout)

    def run_ctest(self, tree, test):
        """Runs one of the project's tests as a user of a build does."""
        build = self.folder / 'ctest'
        search_path = os.pathsep.join(
            [*os.get_exec_path(), str(Path(sys.executable).parent)]
        )
        ninja = harness.find_tool('ninja', search_path)
        for command in (
            [
                harness.find_tool('cmake', search_path),
                *('-S', Project().root, '-B', build, '-G', 'Ninja'),
                f'-DCMAKE_MAKE_PROGRAM={ninja}',
                f'-DPADDLE_PYTHON={tree}',
                f'-DPython3_EXECUTABLE={sys.executable}',
            ],
            [
                harness.find_tool('ctest', search_path),
                *('--test-dir', build, '--no-tests=error'),
                *('--output-on-failure', '-R', f'^{test}$'),
            ],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_each_patch_passes_its_own_tests(self):
        patches = sorted((self.folder / 'patches').iterdir())
        self.assertEqual(len(patches), len(series.PATCHES))
        tests = Project().root / 'test'
        for patch, path in zip(series.PATCHES, patches, strict=True):
            self.git('am', '--quiet', path)
            self.assertEqual(self.git('status', '--porcelain'), '')
            self.run_tests(export.tests_of(patch, tests))
        test = 'test_paddle_load_counts'
        self.run_ctest(self.build(), test)
        # Which tree is tested makes the difference.
        with self.assertRaisesRegex(AssertionError, test):
            self.run_ctest(SITE_PACKAGES, test)


if __name__ == '__main__':
    unittest.main()
