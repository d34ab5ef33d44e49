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

import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp import (
    in_place_restore,
    offloaded_arrays,
)
from paddle.distributed.flex_checkpoint.dcp import load_state_dict as loader
from paddle.framework import io_utils
from parameterized import parameterized
from restore_in_place_case import RestoreCase

TENSORS = 16
TENSOR_BYTES = 16 * 1024 * 1024

# Restores 256 MiB and tells how much memory that took beside the tensors.
MEMORY_SCRIPT = """
import json, sys
import paddle
from paddle.distributed.flex_checkpoint.dcp.load_state_dict import (
    local_load_state_dict,
)

def status_kb(field):
    with open('/proc/self/status') as f:
        return int(f.read().split(field + ':')[1].split()[0])

path, count, shape, num_workers = json.loads(sys.argv[1])
target = {str(i): paddle.zeros(shape) for i in range(count)}
before_kb = status_kb('VmRSS')
local_load_state_dict(target, path, use_dist=False, num_workers=num_workers)
print('extra_kb', status_kb('VmHWM') - before_kb)
"""


class TestReads(RestoreCase):
    def test_each_payload_byte_is_read_once(self):
        arrays = {str(i): self.array() for i in range(20)}
        arrays['other'] = self.array('i8')
        self.write(arrays)
        target = {key: paddle.zeros(a.shape) for key, a in arrays.items()}
        with self.reads_counted() as counts:
            self.assertIsNotNone(self.restore(target))
        payload_bytes = sum(a.nbytes for a in arrays.values())
        file_bytes = os.path.getsize(self.file_path)
        self.assertGreaterEqual(counts['preadv'], payload_bytes)
        # Gaps between payloads come along.
        self.assertLessEqual(counts['preadv'], file_bytes)
        self.assertLess(counts['pread'], 1000 * len(arrays))

    def test_payloads_that_nobody_wants_are_not_read(self):
        # The first and the last, and one of tied weights.
        arrays = {key: self.array() for key in 'abcd'}
        self.write(arrays)
        weight = paddle.zeros(arrays['a'].shape)
        with self.reads_counted() as counts:
            self.assertEqual(self.restore({'c': weight, 'b': weight}), 2)
        self.assertEqual(counts['preadv'], arrays['b'].nbytes)

    def test_text_of_protocol_2_is_not_walked(self):
        self.write({'w': self.array()}, protocol=2)
        with self.reads_counted() as counts:
            self.restore({'w': paddle.zeros(self.array().shape)})
        self.assertLess(counts['pread'], 100)

    @parameterized.expand([(None,), (0,), (1,)])
    def test_serial_restore_is_as_ever(self, num_workers):
        self.write({'w': self.array()})
        target = {'w': paddle.zeros(self.array().shape)}
        with (
            self.reads_counted() as counts,
            mock.patch.object(in_place_restore, '_stand_ins') as stand_ins,
            mock.patch.object(
                offloaded_arrays, '_adoptable_arrays'
            ) as adoptable,
            mock.patch.object(paddle, 'load', wraps=paddle.load) as load,
        ):
            self.restore(target, num_workers)
            self.restore(target, num_workers, offload=True)
        self.assertEqual(load.call_count, 2)
        stand_ins.assert_not_called()
        adoptable.assert_not_called()
        self.assertEqual(counts, {'pread': 0, 'preadv': 0})

    def test_wrong_num_workers(self):
        with self.assertRaisesRegex(TypeError, 'num_workers'):
            self.restore({}, num_workers='2')

    def test_rank_tells_the_file(self):
        self.write({'w': self.array()})
        os.rename(self.file_path, os.path.join(self.path, '7_0.distcp'))
        target = {'w': paddle.zeros(self.array().shape)}
        with mock.patch.object(dist, 'get_rank', return_value=7):
            self.assertTrue(
                in_place_restore._restore_in_place(target, self.path, True, 2)
            )
            self.assertFalse(
                in_place_restore._restore_in_place(target, self.path, False, 2)
            )


class TestPeakMemory(RestoreCase):
    def write_large(self):
        shape = (TENSOR_BYTES // 4 // 1024, 1024)
        array = np.ones(shape, 'f4')
        array[0, 0] = -1
        self.write({str(i): array + i for i in range(TENSORS)})
        return shape

    def extra_bytes(self, shape, num_workers):
        argument = json.dumps([self.path, TENSORS, shape, num_workers])
        result = subprocess.run(
            [sys.executable, '-c', MEMORY_SCRIPT, argument],
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        return int(result.stdout.split('extra_kb')[1]) * 1024

    @unittest.skipUnless(os.path.exists('/proc/self/status'), 'needs procfs')
    def test_extra_peak(self):
        shape = self.write_large()
        self.assertLess(self.extra_bytes(shape, 4), 64 * 1024 * 1024)
        # What is measured would show a copy.
        self.assertGreater(self.extra_bytes(shape, 1), TENSORS * TENSOR_BYTES)


class TestOffload(RestoreCase):
    """With offload, Tensors take over what was read in parallel."""

    def setUp(self):
        super().setUp()
        shape = (io_utils._MIN_PARALLEL_BYTES // 4,)
        self.arrays = {
            'a': self.array(shape=shape),
            'bf16': self.array('u2', shape),
            'fortran': np.asfortranarray(self.array(shape=(1000, 300))),
            'small': self.array(shape=(3,)),
            'scalar': self.array(shape=()),
        }
        self.arrays['same'] = self.arrays['again'] = self.array(shape=shape)

    def loaded(self, num_workers):
        """What paddle.load gave, and the Tensors made of it."""
        arrays = paddle.load(
            self.file_path, return_numpy=True, num_workers=num_workers
        )
        addresses = {
            key: a.__array_interface__['data'][0] for key, a in arrays.items()
        }
        items = loader._offloaded_items(arrays, num_workers)
        tensors = {k: loader._offloaded_tensor(v) for k, v in items}
        return arrays, addresses, tensors

    def adoptions(self):
        return mock.patch.object(
            offloaded_arrays,
            '_array_to_tensor',
            wraps=offloaded_arrays._array_to_tensor,
        )

    @parameterized.expand([(4,), (5,)])
    def test_memory_is_taken_over(self, protocol):
        self.write(self.arrays, protocol)
        arrays, addresses, tensors = self.loaded(num_workers=4)
        self.assertEqual(arrays, {}, 'the Tensors alone hold the memory')
        taken = {k for k, t in tensors.items() if t.data_ptr() == addresses[k]}
        self.assertEqual(taken, {'a', 'bf16'})
        _, _, serial = self.loaded(num_workers=1)
        self.assertEqual(list(tensors), list(serial))
        for key, tensor in tensors.items():
            expected = serial[key]
            self.assertEqual(tensor.dtype, expected.dtype)
            self.assertEqual(tensor.shape, expected.shape)
            self.assertEqual(tensor.place, expected.place)
            self.assertEqual(tensor.stop_gradient, expected.stop_gradient)
            self.assertEqual(
                tensor.numpy().tobytes(), expected.numpy().tobytes(), key
            )

    def test_memory_is_freed_with_the_tensors(self):
        self.write(self.arrays)
        _, _, tensors = self.loaded(num_workers=4)
        for tensor in tensors.values():
            tensor._clear()
            self.assertFalse(tensor._is_initialized())

    @parameterized.expand([(None,), (0,), (1,)])
    def test_serial_load_is_copied(self, num_workers):
        self.write(self.arrays)
        arrays, addresses, tensors = self.loaded(num_workers)
        self.assertEqual(arrays.keys(), self.arrays.keys())
        for key, tensor in tensors.items():
            self.assertNotEqual(tensor.data_ptr(), addresses[key], key)

    def test_watched_load_is_copied(self):
        self.write(self.arrays)
        arrays = paddle.load(self.file_path, return_numpy=True, num_workers=4)
        trace = sys.gettrace()
        sys.settrace(lambda *_: None)
        try:
            values = dict(loader._offloaded_items(arrays, 4))
        finally:
            sys.settrace(trace)
        self.assertTrue(all(isinstance(v, np.ndarray) for v in values.values()))

    def test_local_restore(self):
        self.write(self.arrays)
        target = {k: paddle.zeros(a.shape) for k, a in self.arrays.items()}
        with (
            mock.patch.object(loader, '_restore_in_place', return_value=False),
            self.adoptions() as adopt,
        ):
            self.restore(target, offload=True)
        self.assertEqual(adopt.call_count, 2)
        self.assertEqual(
            target['a'].numpy().tobytes(), self.arrays['a'].tobytes()
        )

    def test_reshard(self):
        saved = {'a': paddle.to_tensor(self.arrays['a'])}
        self.path = tempfile.mkdtemp(dir=self.path)
        dist.save_state_dict(saved, self.path)
        seen = {}

        def load(flat, source, *args):
            seen.update(source['0_0.distcp'])

        with (
            mock.patch.object(loader, '_load_state_dict', load),
            mock.patch.object(loader, '_resumable_locally', return_value=False),
            self.adoptions() as adopt,
        ):
            dist.load_state_dict(
                {'a': paddle.zeros_like(saved['a'])},
                self.path,
                offload=True,
                num_workers=4,
            )
        adopt.assert_called_once()
        self.assertFalse(seen['a']._is_initialized())


if __name__ == '__main__':
    unittest.main()
