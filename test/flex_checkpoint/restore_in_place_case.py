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

import contextlib
import hashlib
import os
import pickle
import re
import tempfile
import unittest
from unittest import mock

import numpy as np
from paddle.distributed.flex_checkpoint.dcp import in_place_restore
from paddle.distributed.flex_checkpoint.dcp import load_state_dict as loader
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight

SEED = 20261129
# Enough for a payload of its own in every dtype of two bytes or more.
LARGE = (250, 200)


def local(value):
    """The tensor that a restore overwrites for a value of a state dict."""
    if isinstance(value, ShardedWeight):
        return value.local_tensor
    return value._local_value() if value.is_dist() else value


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def seen(tensor):
    """All that a restore may change about a tensor."""
    if not tensor._is_initialized():
        return None
    return {
        # A digest, for unequal ones are printed.
        'bytes': digest(tensor.numpy()),
        'shape': tuple(tensor.shape),
        'dtype': tensor.dtype,
        'strides': tensor.strides,
        'place': str(tensor.place),
        'inplace_version': tensor.inplace_version,
        'stop_gradient': tensor.stop_gradient,
        'is_leaf': tensor.is_leaf,
    }


class RestoreCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = folder.name
        self.file_path = os.path.join(self.path, '0_0.distcp')
        self.rng = np.random.default_rng(SEED)

    def array(self, dtype='f4', shape=LARGE):
        """Values with every bit pattern, NaNs among them."""
        dtype = np.dtype(dtype)
        if dtype.kind == 'b':
            return self.rng.integers(0, 2, shape).astype(bool)
        count = int(np.prod(shape)) * dtype.itemsize
        # Writeable, for protocol 5 has two ways.
        data = bytearray(self.rng.bytes(count))
        return np.frombuffer(data, dtype).reshape(shape)

    def write(self, arrays, protocol=4):
        names = {key: key for key in arrays}
        value = {**arrays, 'StructuredToParameterName@@': names}
        with open(self.file_path, 'wb') as f:
            pickle.dump(value, f, protocol)

    def restore(self, state_dict, num_workers=4, **options):
        """Restore; -> how many tensors in place, None for the general way."""
        with mock.patch.object(in_place_restore.logger, 'info') as info:
            loader.local_load_state_dict(
                state_dict,
                self.path,
                use_dist=False,
                num_workers=num_workers,
                **options,
            )
        for call in info.call_args_list:
            found = re.search(r'restored (\d+) of \d+ tensors', call.args[0])
            if found:
                return int(found[1])
        return None

    def attempt(self, make, num_workers, **options):
        """One restore of new tensors; -> (what it did, what they are then)."""
        state_dict, *others = make()
        tensors = [local(value) for value in state_dict.values()]
        addresses = [tensor.data_ptr() for tensor in tensors]
        try:
            done = self.restore(state_dict, num_workers, **options)
        except Exception as error:
            done = error
        state = [
            {'moved': tensor.data_ptr() != address, 'seen': seen(tensor)}
            for tensor, address in zip(tensors, addresses, strict=True)
        ]
        return done, state + [seen(other) for other in others]

    def check_as_serial(self, make, in_place, **options):
        """Compare with the serial restore.

        Args:
            make (callable): -> tuple of a state dict and tensors beside it
                that are compared too; new ones at each call.
            in_place (int|None): How many tensors are restored in place; None
                where the general way restores all.
        """
        done, serial = self.attempt(make, 1, **options)
        self.assertIsNone(done, 'the serial restore')
        done, ours = self.attempt(make, 4, **options)
        if isinstance(done, Exception):
            raise done
        self.assertEqual(ours, serial, f'seed {SEED}')
        self.assertEqual(done, in_place)

    def check_fails_as_serial(self, make, *, written=False):
        """Compare errors; before ours no tensor may have been written to."""
        before = [seen(local(value)) for value in make()[0].values()]
        expected, _ = self.attempt(make, 1)
        error, state = self.attempt(make, 4)
        self.assertIsInstance(expected, Exception)
        self.assertIs(type(error), type(expected))
        self.assertEqual(str(error), str(expected))
        if not written:
            self.assertEqual([entry['seen'] for entry in state], before)
        return error

    @contextlib.contextmanager
    def reads_counted(self):
        """Bytes that come through pread and through preadv."""
        counts = {'pread': 0, 'preadv': 0}
        pread, preadv = os.pread, os.preadv

        def count_pread(*args):
            data = pread(*args)
            counts['pread'] += len(data)
            return data

        def count_preadv(*args):
            count = preadv(*args)
            counts['preadv'] += count
            return count

        with (
            mock.patch.object(os, 'pread', count_pread),
            mock.patch.object(os, 'preadv', count_preadv),
        ):
            yield counts
