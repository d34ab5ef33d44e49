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

"""Arguments and exit codes of paddle_fork.py, without any set-up."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from fork import cli, harness
from fork.console import ForkError
from fork.project import Project
from parameterized import parameterized

TOOL = Path(__file__).resolve().parents[2] / 'tools' / 'paddle_fork.py'


def run(*args):
    """Exit code and what was printed on stdout and stderr."""
    output, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        try:
            code = cli.main(list(map(str, args)))
        except SystemExit as end:
            code = end.code
    return code, output.getvalue(), errors.getvalue()


class CliCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        patcher = mock.patch.object(
            Project, 'set_up', return_value=Path(sys.executable)
        )
        self.set_up = patcher.start()
        self.addCleanup(patcher.stop)


class TestUsage(CliCase):
    @parameterized.expand(
        [
            ('no_command', []),
            ('unknown_command', ['frobnicate']),
            ('abbreviated_option', ['demo', '--check', 'x']),
            ('build_with_more', ['build', '-R', 'x']),
            ('no_workers', ['demo', '--num-workers', '0']),
            ('workers_in_words', ['demo', '--num-workers', 'eight']),
            ('no_such_checkpoint', ['demo', '--checkpoint', '/no/such']),
            ('no_such_tree', ['test', '--paddle-python', '/no/such']),
            ('apply_nothing', ['apply']),
            ('apply_no_tree', ['apply', '/no/such']),
            ('apply_two_modes', ['apply', '/', '--check', '--revert']),
            ('diff_no_tree', ['diff', '/no/such']),
            ('apply_empty', ['apply', '']),
            ('diff_empty', ['diff', '']),
            ('check_empty', ['check', '']),
            ('export_empty', ['export', '', '-o', 'x']),
            ('export_to_empty', ['export', 'x', '-o', '']),
            ('demo_empty', ['demo', '--checkpoint', '']),
            ('test_empty', ['test', '--paddle-python', '']),
        ]
    )
    def test_bad_usage_is_2(self, _, args):
        code, output, errors = run(*args)
        self.assertEqual(code, 2, errors)
        self.assertEqual(output, '')
        self.assertRegex(errors, r'paddle_fork\.py( \w+)?: ')
        self.set_up.assert_not_called()

    @parameterized.expand(
        [
            ('apply', ['apply', '']),
            ('diff', ['diff', '']),
            ('check', ['check', '']),
            ('demo', ['demo', '--checkpoint', '']),
        ]
    )
    def test_an_empty_path_is_told(self, _, args):
        self.assertIn('expected a path, but it is empty', run(*args)[2])

    def test_a_tree_that_does_not_exist_is_told(self):
        missing = self.folder / 'missing'
        self.assertIn('it does not exist', run('apply', missing)[2])
        self.assertIn('found neither', run('apply', self.folder)[2])

    def test_help_tells_the_paths_of_diff(self):
        self.assertIn('python/paddle/...', run('diff', '--help')[1])

    def test_help_tells_both_halves_of_demo(self):
        self.assertIn('two ranks (gloo)', run('demo', '--help')[1])

    def test_help_from_another_directory(self):
        done = subprocess.run(
            [sys.executable, TOOL, '--help'],
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        for command in ('demo', 'test', 'build', 'apply', 'diff'):
            self.assertRegex(done.stdout, rf'\n    {command} +\w')


class TestOutcomes(CliCase):
    def test_build_prints_the_path_alone(self):
        code, output, _ = run('build')
        self.assertEqual((code, output), (0, f'PYTHONPATH={Project().tree}\n'))

    def test_a_failed_step_is_1(self):
        self.set_up.side_effect = ForkError('no network')
        code, _, errors = run('build')
        self.assertEqual((code, errors), (1, 'paddle_fork.py: no network\n'))

    def test_an_interrupt_is_130(self):
        self.set_up.side_effect = KeyboardInterrupt
        self.assertEqual(run('build')[0], 130)

    def test_other_options_of_test_go_to_ctest_in_order(self):
        with mock.patch.object(harness, 'run_tests', return_value=1) as tests:
            code, _, _ = run('test', '-R', 'load', '-j', '4', '-V')
        self.assertEqual(code, 1)
        tests.assert_called_once_with(
            Project(), ['-R', 'load', '-j', '4', '-V'], None, sanitize=False
        )

    def test_sanitize_is_an_option_of_test(self):
        with mock.patch.object(harness, 'run_tests', return_value=0) as tests:
            code, _, _ = run('test', '-R', 'load', '--sanitize')
        self.assertEqual(code, 0)
        tests.assert_called_once_with(
            Project(), ['-R', 'load'], None, sanitize=True
        )


class TestCheckout(CliCase):
    def make_tree(self, root):
        (root / 'paddle' / 'framework').mkdir(parents=True)
        (root / 'paddle' / '__init__.py').write_text('')
        (root / 'paddle' / 'framework' / 'io.py').write_text('x = 1\n')

    def names(self):
        return sorted(self.folder.rglob('*'))

    def test_a_tree_that_does_not_fit_is_1_and_stays(self):
        (self.folder / 'paddle').mkdir()  # the C++ side of a checkout
        self.make_tree(self.folder / 'python')
        before = self.names()
        for args in (['apply'], ['apply', '--check'], ['diff']):
            with self.subTest(args):
                code, output, errors = run(*args, self.folder)
                self.assertEqual(code, 1)
                self.assertIn('load_num_workers: failed', output + errors)
        self.assertEqual(self.names(), before)

    def test_a_reader_that_has_enough(self):
        """The pipe is closed before anything is printed."""
        # Buffered, as for users: it is the last flush that fails.
        environ = {**os.environ, 'PYTHONUNBUFFERED': ''}
        self.make_tree(self.folder)
        for args in (
            ['apply', self.folder, '--check', '-v'],
            ['check', self.folder],
            ['apply', '--help'],
        ):
            with self.subTest(args):
                reading, writing = os.pipe()
                os.close(reading)
                with os.fdopen(writing, 'wb') as pipe:
                    done = subprocess.run(
                        [sys.executable, TOOL, *args],
                        env=environ,
                        stdout=pipe,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                self.assertEqual((done.returncode, done.stderr), (1, ''))

    def test_a_folder_that_holds_the_package_itself(self):
        self.make_tree(self.folder)
        self.assertEqual(run('apply', self.folder)[0], 1)

    def test_nothing_to_revert_is_1(self):
        self.make_tree(self.folder)
        code, _, errors = run('apply', '--revert', self.folder)
        self.assertEqual(code, 1)
        self.assertIn(str(self.folder), errors)

    @parameterized.expand(
        [
            ('wheel', 'paddlepaddle-3.3.1.dist-info', 'installed Paddle'),
            ('fork', 'paddle_fork.stamp', 'fork tree'),
        ]
    )
    def test_generated_trees_are_refused(self, _, mark, word):
        self.make_tree(self.folder)
        (self.folder / mark).touch()
        code, _, errors = run('apply', self.folder)
        self.assertEqual(code, 2)
        self.assertIn(word, errors)


if __name__ == '__main__':
    unittest.main()
