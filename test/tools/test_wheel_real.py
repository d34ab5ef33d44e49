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

"""A patched wheel of the real base, in a fresh virtual environment.

Takes about a minute, 200 MB from the network or pip's cache, and 2 GB of the
temporary directory while it runs.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from fork import wheel
from fork.console import ForkError
from fork.environment import clean_environ, venv_python
from fork.project import Project

ROOT = Path(__file__).resolve().parents[2]

PROBE = """\
import importlib.metadata
import inspect
import json
import os
import paddle

path = os.path.join(os.environ['PROBE_FOLDER'], 'x.pdparams')
paddle.save({'x': paddle.ones([1500, 1000])}, path)
try:
    total = float(paddle.load(path, num_workers=4)['x'].sum())
except ValueError as error:
    total = str(error)
print(json.dumps({
    'version': paddle.__version__,
    'installed': importlib.metadata.version('paddlepaddle'),
    'option': 'num_workers' in inspect.signature(
        paddle.distributed.load_state_dict
    ).parameters,
    'total': total,
}))
"""


class TestRealWheel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix='paddle-real-wheel-')
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_in_venv(self, *args, **variables):
        """Runs the environment's Python; -> what it printed on stdout."""
        done = subprocess.run(
            [venv_python(self.folder / 'venv'), *args],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=clean_environ(PROBE_FOLDER=str(self.folder), **variables),
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def pip(self, *args, **variables):
        return self.run_in_venv('-m', 'pip', *args, **variables)

    def probe(self):
        return json.loads(self.run_in_venv('-c', PROBE).splitlines()[-1])

    def test_over_stock_and_back(self):
        pinned = wheel.pinned_paddle(Project(ROOT))
        try:
            base = wheel.download_wheel(pinned, self.folder / 'base')
        except ForkError as error:
            self.skipTest(str(error))
        version = pinned.partition('==')[2]
        subprocess.run(
            [sys.executable, '-m', 'venv', self.folder / 'venv'], check=True
        )
        stock = {
            'version': version,
            'installed': version,
            'option': False,
        }
        self.pip('install', '--quiet', base)
        before = self.probe()
        self.assertEqual(before | stock, before)

        self.pip(
            *('install', '--quiet', ROOT),
            **{wheel.BASE_VARIABLE: str(base), 'TMPDIR': str(self.folder)},
        )
        self.pip('check')
        probed = self.probe()
        self.assertEqual(probed['version'], version)
        self.assertRegex(
            probed['installed'], rf'\A{version}\+{wheel.LABEL}\.\d'
        )
        self.assertTrue(probed['option'])
        self.assertEqual(probed['total'], 1.5e6)

        self.pip(
            *('install', '--quiet', '--force-reinstall', '--no-deps'), base
        )
        self.pip('check')
        back = self.probe()
        self.assertEqual(back | stock, back)
        self.assertIn('num_workers', back['total'])
        names = [
            name
            for folder, _, names in os.walk(self.folder / 'venv')
            for name in names
            if name in ('fast_resumable.py', wheel.NOTE_NAME)
        ]
        self.assertEqual(names, [])


if __name__ == '__main__':
    unittest.main()
