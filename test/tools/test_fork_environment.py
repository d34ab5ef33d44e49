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

"""The virtual environment: made once, never half, never a foreign one."""

import tempfile
import unittest
import venv
from pathlib import Path
from unittest import mock

from fork import environment
from fork.console import ForkError
from fork.environment import ensure_environment


def make_empty_venv(folder):
    """Stands in for the real one, which takes seconds to get its pip."""
    venv.create(folder, with_pip=False, symlinks=True)


class TestEnsureEnvironment(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.venv = self.root / '.venv'
        self.requirements = self.root / 'tools' / 'requirements.txt'
        self.requirements.parent.mkdir()
        self.requirements.write_text('one==1\n')
        self.cmake = self.root / 'tools' / 'requirements-cmake.txt'
        self.cmake.write_text('cmake==1\n')
        self.create = self.patch('create_venv', side_effect=make_empty_venv)
        self.install = self.patch('install')
        self.has_cmake = self.patch('has_cmake_and_ninja', return_value=True)

    def patch(self, name, **kwargs):
        patcher = mock.patch.object(environment, name, **kwargs)
        self.addCleanup(patcher.stop)
        return patcher.start()

    def test_made_once(self):
        python = ensure_environment(self.root)
        self.assertEqual(python, environment.venv_python(self.venv))
        ensure_environment(self.root)
        self.create.assert_called_once_with(self.venv)
        self.install.assert_called_once_with(python, [self.requirements])

    def test_changed_requirements_are_installed_into_the_same(self):
        ensure_environment(self.root)
        self.requirements.write_text('one==2\n')
        ensure_environment(self.root)
        ensure_environment(self.root)
        self.create.assert_called_once()
        self.assertEqual(self.install.call_count, 2)

    def test_cmake_only_where_it_lacks(self):
        self.has_cmake.return_value = False
        python = ensure_environment(self.root)
        self.install.assert_called_once_with(
            python, [self.requirements, self.cmake]
        )

    def test_an_interrupted_install_is_made_anew(self):
        self.install.side_effect = KeyboardInterrupt
        with self.assertRaises(KeyboardInterrupt):
            ensure_environment(self.root)
        half = self.venv / 'half_a_package'
        half.touch()
        self.install.side_effect = None
        ensure_environment(self.root)
        self.assertFalse(half.exists())
        self.assertEqual(self.create.call_count, 2)
        ensure_environment(self.root)
        self.assertEqual(self.install.call_count, 2)

    def test_an_interrupted_top_up_is_not_taken_for_done(self):
        ensure_environment(self.root)
        first = self.requirements.read_text()
        self.requirements.write_text('one==2\n')
        self.install.side_effect = ForkError('no network')
        with self.assertRaises(ForkError):
            ensure_environment(self.root)
        self.install.side_effect = None
        self.requirements.write_text(first)
        ensure_environment(self.root)
        self.assertEqual(self.install.call_count, 3)

    def test_a_venv_made_by_hand_is_topped_up(self):
        make_empty_venv(self.venv)
        ensure_environment(self.root)
        self.create.assert_not_called()
        self.install.assert_called_once()

    def refused(self, pattern):
        with self.assertRaisesRegex(ForkError, pattern) as caught:
            ensure_environment(self.root)
        self.assertIn(f'Remove it ({self.venv})', str(caught.exception))
        self.install.assert_not_called()

    def test_a_folder_that_is_no_venv_is_refused(self):
        self.venv.mkdir()
        self.refused('expected a virtual environment')

    def test_a_venv_without_interpreter_is_refused(self):
        make_empty_venv(self.venv)
        environment.venv_python(self.venv).unlink()
        self.refused('its interpreter does not start')

    def test_a_venv_of_another_python_is_refused(self):
        make_empty_venv(self.venv)
        python = environment.venv_python(self.venv)
        python.unlink()
        python.write_text('#!/bin/sh\necho 3.1\n')
        python.chmod(0o755)
        self.refused('it was made with 3.1. Remove')


class TestCleanEnviron(unittest.TestCase):
    def test_the_callers_python_paths_are_gone(self):
        given = {'PYTHONPATH': '/a', 'PYTHONHOME': '/b', 'KEPT': 'yes'}
        with mock.patch.dict('os.environ', given, clear=True):
            self.assertEqual(environment.clean_environ(), {'KEPT': 'yes'})


class TestSitePackages(unittest.TestCase):
    def test_no_paddle_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder)
            packages = base / 'lib' / 'python3.11' / 'site-packages'
            (packages / 'paddle').mkdir(parents=True)
            python = base / 'bin' / 'python'
            with self.assertRaisesRegex(ForkError, 'package paddle'):
                environment.site_packages(python)
            (packages / 'paddle' / '__init__.py').touch()
            self.assertEqual(environment.site_packages(python), packages)


if __name__ == '__main__':
    unittest.main()
