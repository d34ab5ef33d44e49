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

"""Ctrl-C at random moments of loads, where misuse of memory is found out.

In processes of their own, for what they do wrong may end them.
"""

import json
import random
import unittest

from num_workers_case import LARGE_BYTES, NumWorkersCase
from pressure_case import run_script
from sanitizer_case import SanitizerMissing, sanitizer_environment

SEED = 20261130
TIMES = 200

SCRIPT = '''
import os
import pickle
import sys

from ctrl_c_case import RandomCtrlC
from paddle.framework import io_utils

path, seed, times = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ctrl_c = RandomCtrlC(seed, times)


def load():
    with open(path, 'rb') as f:
        return io_utils._load_pickle(pickle.load, path, f, 3)


def check_next_load():
    with ctrl_c.undisturbed():
        if load() != expected:
            yield 'the next load'


class Filled:
    """Memory of ours that a reader fills, as that of Tensors is filled."""

    def __init__(self):
        self.targets = []
        for payload in payloads:
            value = bytearray(payload.length_bytes)
            address = io_utils._python_api()['bytearray'][1](value)
            self.targets.append((value, address))
        self.values = [value for value, _ in self.targets]

    def load(self):
        with open(path, 'rb', buffering=0) as f:
            reader = io_utils._ParallelPayloads(
                f.fileno(), payloads, 3, self.targets
            )
            with reader, reader:
                reader.start()
                return [reader.take() for _ in payloads]

    def check(self):
        """Write what only a late read would change."""
        for value in self.values:
            value[:] = bytes([0xA5]) * len(value)
        yield from check_next_load()
        if not all(v.count(0xA5) == len(v) for v in self.values):
            yield 'written to afterwards'


def fill():
    filled = Filled()
    return filled.load, filled.check


expected = load()
with open(path, 'rb') as f:
    payloads = io_utils._index_payloads(
        lambda offset, length: os.pread(f.fileno(), length, offset),
        os.path.getsize(path),
    )
ctrl_c.run([fill, lambda: (load, check_next_load)])
'''


class TestCtrlC(NumWorkersCase):
    def check_at_random_moments(self, **environment):
        rng = random.Random(SEED)
        self.dump([rng.randbytes(LARGE_BYTES) for _ in range(4)])
        report = json.loads(
            run_script(SCRIPT, self.path, SEED, TIMES, **environment)
        )
        message = f'seed {SEED}: {report}'
        self.assertEqual(report['wrong'], [], message)
        self.assertEqual(report['late'], [], message)
        self.assertEqual(report['unraisable'], [], message)
        self.assertGreater(report['interrupted'], TIMES // 2, message)

    def test_with_the_allocator_that_checks(self):
        self.check_at_random_moments(PYTHONMALLOC='debug')

    def test_with_a_sanitizer(self):
        """A read that begins or goes on when memory is gone ends the process."""
        try:
            environment = sanitizer_environment(self.directory)
        except SanitizerMissing as reason:
            self.skipTest(str(reason))
        self.check_at_random_moments(**environment)


if __name__ == '__main__':
    unittest.main()
