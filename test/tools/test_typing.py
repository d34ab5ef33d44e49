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

"""A type checker knows the options of `paddle.load`."""

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import unittest
from pathlib import Path

from parameterized import parameterized

ACCEPTED = (
    'num_workers=8',
    'num_workers=None',
    'safetensors=True, num_workers=8',
    'return_numpy=True, num_workers=8',
)
REJECTED = {
    "num_workers='8'": 'str',
    'num_workers=1.5': 'float',
    'num_workers=[8]': 'list[int]',
}


def check_calls(options):
    """Types a call of `paddle.load` for each of the options.

    Returns:
        dict: options to the checker's errors about that call.
    """
    tree = Path(importlib.util.find_spec('paddle').origin).parents[1]
    installed = tree == Path(sysconfig.get_path('purelib'))
    calls = ''.join(f"paddle.load('x', {option})\n" for option in options)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / 'calls.py').write_text(f'import paddle\n{calls}')
        done = subprocess.run(
            # Silent: Paddle's own stubs have errors of their own.
            [
                *(sys.executable, '-m', 'mypy', '--follow-imports=silent'),
                *('--cache-dir', os.devnull, 'calls.py'),
            ],
            cwd=folder,
            # mypy finds site-packages itself and refuses it as a path.
            env={**os.environ, 'MYPYPATH': '' if installed else str(tree)},
            capture_output=True,
            text=True,
        )
    if '1 source file' not in done.stdout:  # the summary of a whole run
        raise RuntimeError(f'mypy failed: {done.stdout}{done.stderr}')
    errors = {option: [] for option in options}
    for line, text in re.findall(
        r'^calls\.py:(\d+): error: (.*)$', done.stdout, re.MULTILINE
    ):
        errors[options[int(line) - 2]].append(text)
    return errors


class TestLoadOptions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # In one run, as the checker reads all of Paddle each time.
        cls.errors = check_calls([*ACCEPTED, *REJECTED])

    @parameterized.expand(ACCEPTED)
    def test_accepts(self, option):
        self.assertEqual(self.errors[option], [])

    @parameterized.expand(REJECTED.items())
    def test_rejects(self, option, given):
        [error] = self.errors[option]
        self.assertRegex(
            error,
            r'"num_workers" to "load" has incompatible type '
            rf'"{re.escape(given)}"; expected "int \| None"',
        )


if __name__ == '__main__':
    unittest.main()
