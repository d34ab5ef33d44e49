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


"""The unpickler of every CPython that is there does what the loader needs.

Looks for interpreters of version managers and on the PATH; those named in
UNPICKLER_PROBE_PYTHONS, a list of paths, come instead. Nothing is fetched.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

import unpickler_probe

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER.parents[1] / 'docs/unpickler.md'

# What Paddle runs on, and what may come.
LEAST_VERSION = [3, 9]
MINORS = range(9, 20)

# A probe takes 2 s; what hangs is ended, not waited for.
LIMIT_S = 120

_ASKED = (
    'import json, sys; print(json.dumps(['
    'sys.implementation.name, list(sys.version_info[:2]), sys.version]))'
)


def candidates():
    """Paths of interpreters, the running one first."""
    named = os.environ.get('UNPICKLER_PROBE_PYTHONS')
    if named:
        return named.split(os.pathsep)
    root = Path(os.environ.get('PYENV_ROOT', Path.home() / '.pyenv'))
    managed = sorted(root.glob('versions/3.*/bin/python'))
    on_path = [shutil.which(f'python3.{minor}') for minor in MINORS]
    return [sys.executable, *map(str, managed), *filter(None, on_path)]


def run(*command):
    # The test's own modules are no business of another Python.
    environment = {**os.environ, 'PYTHONDONTWRITEBYTECODE': '1'}
    environment.pop('PYTHONPATH', None)
    return subprocess.run(
        command,
        cwd=FOLDER,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )


def interpreters():
    """A path for each build of CPython that starts and is not too old."""
    found = {}
    for path in candidates():
        try:
            name, version, build = json.loads(run(path, '-c', _ASKED).stdout)
        except (OSError, ValueError):  # a version manager's stub may do so
            continue
        if name == 'cpython' and version >= LEAST_VERSION:
            found.setdefault(build, path)
    return list(found.values())


class TestSupportedPythons(unittest.TestCase):
    def test_every_python(self):
        paths = interpreters()
        self.assertTrue(paths, f'no CPython among {candidates()}')
        for path in paths:
            with self.subTest(path):
                result = run(path, 'unpickler_probe.py')
                self.assertEqual(result.returncode, 0, result.stdout[-5000:])
                ran = re.search(r'^Ran (\d+) tests', result.stdout, re.M)
                self.assertGreater(int(ran[1]), len(self.behaviours()))
                print(result.stdout.splitlines()[0])

    def behaviours(self):
        return {
            name.removeprefix('test_')
            for name in dir(unpickler_probe.TestUnpickler)
            if name.startswith('test_')
        }

    def test_each_behaviour_is_stated_and_probed(self):
        stated = re.findall(
            r'^\| `(\w+)` \|', PAGE.read_text(encoding='utf-8'), re.M
        )
        self.assertEqual(len(stated), len(set(stated)))
        self.assertEqual(set(stated), self.behaviours())


if __name__ == '__main__':
    unittest.main()
