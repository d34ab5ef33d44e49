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

"""Ranks on CPU, each a process that runs a script of the tests."""

import os
import signal
import subprocess
import sys
import tempfile
import unittest

import paddle


class RanksCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def launch(self, num_ranks, script, *arguments, limit_s):
        """Run a script on every rank.

        Args:
            num_ranks (int): How many.
            script (str): Its path.
            arguments (str): For the script.
            limit_s (float): What takes longer is ended, and fails the test.

        Returns:
            tuple[int, str]: Exit status, and the output of launcher and ranks.
        """
        package_root = os.path.dirname(os.path.dirname(paddle.__file__))
        process = subprocess.Popen(
            [
                *(sys.executable, '-m', 'paddle.distributed.launch'),
                *('--nproc_per_node', str(num_ranks), '--backend', 'gloo'),
                *('--log_dir', os.path.join(self.folder, 'log')),
                *(os.path.abspath(script), *arguments),
            ],
            env={**os.environ, 'PYTHONPATH': package_root},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            self.fail(f'hung: {process.communicate()[0][-3000:]}')
        return process.returncode, output + self.logs()

    def logs(self):
        texts = []
        for folder, _, names in os.walk(os.path.join(self.folder, 'log')):
            for name in sorted(names):
                with open(os.path.join(folder, name), errors='replace') as f:
                    texts.append(f.read())
        return '\n'.join(texts)
