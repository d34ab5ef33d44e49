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

"""Ctrl-C at random moments of a restore into the memory of Tensors."""

import json
import os
import unittest

import numpy as np
from num_workers_case import NumWorkersCase
from parameterized import parameterized
from pressure_case import run_script
from sanitizer_case import SanitizerMissing, sanitizer_environment

SEED = 20261130
TIMES = 200

SCRIPT = '''
import logging
import os
import sys

import numpy as np
import paddle
from ctrl_c_case import RandomCtrlC
from paddle.distributed.flex_checkpoint.dcp import in_place_restore
from paddle.distributed.flex_checkpoint.dcp import load_state_dict as loader

path, seed, times = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
MARK = 0xA5
SHAPE = (250, 300)
KEYS = [f'w{n}' for n in range(4)]
ctrl_c = RandomCtrlC(seed, times)
in_place_restore.logger.setLevel(logging.ERROR)


def tensors():
    return {key: paddle.zeros(SHAPE, 'uint8') for key in KEYS}


def restore(state_dict):
    done = in_place_restore._restore_in_place(state_dict, path, False, 3)
    assert done, 'it was not restored in place'


def values(state_dict):
    return [tensor.numpy().tobytes() for tensor in state_dict.values()]


def restored():
    state_dict = tensors()
    with ctrl_c.undisturbed():
        restore(state_dict)
    return values(state_dict)


def make():
    state_dict = tensors()

    def left_by():
        """Write what only a late read would change."""
        for tensor in state_dict.values():
            tensor.fill_(MARK)
        if restored() != expected:
            yield 'the next restore'
        if values(state_dict) != [bytes([MARK]) * (250 * 300)] * len(KEYS):
            yield 'written to afterwards'

    def gone():
        """Tensors that nobody has any more."""
        state_dict.clear()
        if restored() != expected:
            yield 'the next restore'

    return lambda: restore(state_dict), gone if ctrl_c.calls % 2 else left_by


serial = paddle.load(os.path.join(path, '0_0.distcp'), return_numpy=True)
expected = [serial[key].tobytes() for key in KEYS]
ctrl_c.run([make])
'''


class TestCtrlC(NumWorkersCase):
    def environment_of(self, checker):
        if checker == 'allocator':
            return {'PYTHONMALLOC': 'debug'}
        try:
            return sanitizer_environment(self.directory)
        except SanitizerMissing as reason:
            return self.skipTest(str(reason))

    @parameterized.expand([('allocator',), ('sanitizer',)])
    def test_at_random_moments(self, checker):
        environment = self.environment_of(checker)
        rng = np.random.default_rng(SEED)
        arrays = {
            f'w{n}': rng.integers(0, 256, (250, 300), 'u1') for n in range(4)
        }
        names = {key: key for key in arrays}
        self.path = os.path.join(self.directory, '0_0.distcp')
        self.dump({**arrays, 'StructuredToParameterName@@': names})
        report = json.loads(
            run_script(SCRIPT, self.directory, SEED, TIMES, **environment)
        )
        message = f'seed {SEED}: {report}'
        self.assertEqual(report['wrong'], [], message)
        self.assertEqual(report['late'], [], message)
        self.assertEqual(report['unraisable'], [], message)
        self.assertGreater(report['interrupted'], TIMES // 2, message)


if __name__ == '__main__':
    unittest.main()
