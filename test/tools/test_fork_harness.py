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

"""Tests that fail, are skipped or are missing are never taken for passed."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from fork import harness
from fork.console import EXIT_FAILED, EXIT_OK, ForkError
from fork.project import Project
from parameterized import parameterized

CMAKE = Path(__file__).resolve().parents[2] / 'cmake'

HEAD = 'import unittest\nclass Case(unittest.TestCase):\n'
PASSES = HEAD + '    def test_it(self): pass\n'
FAILS = HEAD + '    def test_it(self): self.fail("on purpose")\n'
SKIPS = HEAD + '    def test_it(self): self.skipTest("on purpose")\n'
SKIPS_ONE = SKIPS + '    def test_other(self): pass\n'
SKIPS_MODULE = PASSES + (
    'def setUpModule(): raise unittest.SkipTest("on purpose")\n'
)
EXPECTED_FAILURE = HEAD + (
    '    @unittest.expectedFailure\n    def test_it(self): self.fail()\n'
)

PROJECT = f"""
cmake_minimum_required(VERSION 3.18)
project(sample LANGUAGES NONE)
find_package(Python3 REQUIRED COMPONENTS Interpreter)
enable_testing()
include("{CMAKE.as_posix()}/PyTestModules.cmake")
py_test_folder(ENVS PYTHONPATH=/behind SAMPLE=1)
"""

SHOWS_ENVIRONMENT = (
    HEAD
    + """
    def test_it(self):
        import os
        self.assertEqual(os.environ['SAMPLE'], '1')
        paths = os.environ['PYTHONPATH'].split(os.pathsep)
        self.assertEqual(paths[0], os.path.realpath({tree!r}))
        self.assertEqual(paths[1], '/behind')
"""
)


class TestRunner(unittest.TestCase):
    @parameterized.expand(
        [
            ('passes', PASSES, 0),
            ('skips_one', SKIPS_ONE, 0),
            ('expected_failure', EXPECTED_FAILURE, 0),
            ('fails', FAILS, 1),
            ('no_tests', 'x = 1\n', 1),
            ('no_import', 'import no_such_module\n', 1),
            ('no_syntax', 'def\n', 1),
            ('exits', 'raise SystemExit(0)\n', 1),
            ('skips_all', SKIPS, 77),
            ('skips_module', SKIPS_MODULE, 77),
        ]
    )
    def test_exit_code(self, _, text, expected):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / 'test_sample.py').write_text(text)
            done = subprocess.run(
                [sys.executable, CMAKE / 'run_py_test.py', folder]
                + ['test_sample'],
                capture_output=True,
                text=True,
            )
        self.assertEqual(done.returncode, expected, done.stderr)


class TestRunTests(unittest.TestCase):
    """The whole way through CMake and CTest, on an invented project."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.project = Project(self.root)
        (self.root / 'CMakeLists.txt').write_text(PROJECT)
        # Those of `.venv`, where the machine has none.
        beside = os.pathsep.join(
            [*os.get_exec_path(), str(Path(sys.executable).parent)]
        )
        for patcher in (
            mock.patch.dict(os.environ, PATH=beside),
            mock.patch.object(
                Project, 'set_up', return_value=Path(sys.executable)
            ),
        ):
            patcher.start()
            self.addCleanup(patcher.stop)

    def run_tests(self, *ctest_args, paddle_python=None, sanitize=False):
        """Exit code and last line of `test`."""
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            code = harness.run_tests(
                self.project, ctest_args, paddle_python, sanitize=sanitize
            )
        return code, output.getvalue().splitlines()[-1]

    def write(self, **modules):
        for name, text in modules.items():
            (self.root / f'test_{name}.py').write_text(text)

    def test_counts_and_exit_code(self):
        self.write(good=PASSES, bad=FAILS, none='', skip=SKIPS)
        self.assertEqual(
            self.run_tests(), (EXIT_FAILED, '1 passed, 2 failed, 1 skipped')
        )
        self.assertEqual(
            self.run_tests('-R', 'good'), (EXIT_OK, '1 passed, 0 failed')
        )

    def test_nothing_run_is_a_failure(self):
        self.write(good=PASSES, skip=SKIPS)
        code, line = self.run_tests('-R', 'matches_nothing')
        self.assertEqual((code, line), (EXIT_FAILED, '0 passed, 0 failed'))
        code, line = self.run_tests('-R', 'skip')
        self.assertEqual(
            (code, line), (EXIT_FAILED, '0 passed, 0 failed, 1 skipped')
        )

    def test_a_new_file_needs_no_other_change(self):
        self.write(good=PASSES)
        self.run_tests()
        self.write(more=PASSES)
        self.assertEqual(self.run_tests(), (EXIT_OK, '2 passed, 0 failed'))

    def test_environment_of_a_test(self):
        text = SHOWS_ENVIRONMENT.format(tree=str(self.project.tree))
        self.write(environment=text)
        self.assertEqual(self.run_tests(), (EXIT_OK, '1 passed, 0 failed'))

    def test_another_paddle_tree(self):
        tree = self.root / 'elsewhere'
        (tree / 'paddle').mkdir(parents=True)
        self.write(environment=SHOWS_ENVIRONMENT.format(tree=str(tree)))
        with self.assertRaisesRegex(ForkError, 'package paddle'):
            self.run_tests(paddle_python=tree)
        (tree / 'paddle' / '__init__.py').touch()
        self.assertEqual(
            self.run_tests(paddle_python=tree),
            (EXIT_OK, '1 passed, 0 failed'),
        )

    def stand_in_for_the_sanitizer(self, text):
        folder = self.root / 'test' / 'legacy_test'
        folder.mkdir(parents=True)
        (folder / 'sanitizer_case.py').write_text(text)

    def test_under_a_sanitizer(self):
        """Its variables are those of one run, and no later one."""
        self.stand_in_for_the_sanitizer('print("SAMPLE=2\\nFOUND=/a:/b")')
        shows = "    def test_it(self):\n        import os\n        "
        shows += "self.assertEqual(os.environ['SAMPLE'], {!r})\n        "
        shows += "self.assertEqual(os.environ.get('FOUND'), {!r})\n"
        self.write(environment=HEAD + shows.format('2', '/a:/b'))
        passed = (EXIT_OK, '1 passed, 0 failed')
        self.assertEqual(self.run_tests(sanitize=True), passed)
        self.write(environment=HEAD + shows.format('1', None))
        self.assertEqual(self.run_tests(), passed)

    def test_no_sanitizer(self):
        self.stand_in_for_the_sanitizer('import sys; sys.exit("no such thing")')
        self.write(good=PASSES)
        with self.assertRaisesRegex(ForkError, '^no such thing$'):
            self.run_tests(sanitize=True)

    def test_a_build_directory_of_another_checkout_is_made_anew(self):
        self.write(good=PASSES)
        self.project.ctest.mkdir(parents=True)
        (self.project.ctest / 'CMakeCache.txt').write_text(
            'CMAKE_HOME_DIRECTORY:INTERNAL=/another/place\n'
            'CMAKE_GENERATOR:INTERNAL=Unix Makefiles\n'
        )
        self.assertEqual(self.run_tests(), (EXIT_OK, '1 passed, 0 failed'))

    def test_configured_by_hand_for_no_paddle(self):
        """This project's CMakeLists.txt, not the invented one."""
        command = ['cmake', '-S', CMAKE.parent, '-B', self.root / 'build']
        command += [f'-DPython3_EXECUTABLE={sys.executable}']
        tree = self.root / 'elsewhere'
        command += [f'-DPADDLE_PYTHON={tree}']
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn('expected a directory that holds', done.stderr)
        (tree / 'paddle').mkdir(parents=True)
        (tree / 'paddle' / '__init__.py').touch()
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == '__main__':
    unittest.main()
