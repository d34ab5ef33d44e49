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

"""paddle.load(path, num_workers=n) gives what paddle.load(path) gives."""

import gzip
import hashlib
import io
import os
import pickle
import pickletools
import sys
import threading
import unittest
from collections import OrderedDict
from importlib import metadata

import numpy as np
import paddle
from num_workers_case import (
    LARGE_BYTES,
    NumWorkersCase,
    attempts,
    fingerprint,
    outcome,
    preadv_replaced,
    small_thresholds,
)
from paddle.framework import io_utils
from parameterized import parameterized

SEED = 20261129
PROTOCOLS = 2, 3, 4, 5
COUNTS = 2, 8, 1000
DTYPES = (
    'bool', 'int8', 'int16', 'int32', 'int64', 'uint8', 'float16', 'bfloat16',
    'float32', 'float64', 'complex64', 'complex128',
)  # fmt: skip


def large_tensors():
    paddle.seed(SEED)
    count = LARGE_BYTES // 2
    wide = paddle.randn([3, count // 2])
    return {
        **{name: paddle.randn([count]).astype(name) for name in DTYPES},
        **{f'tiny_{name}': paddle.ones([2, 3]).astype(name) for name in DTYPES},
        'zero_d': paddle.to_tensor(3.5),
        'empty': paddle.zeros([0, 4]),
        'transposed': wide.t(),
        'nan': paddle.full([count], float('nan')),
    }


def trained_layer():
    layer = paddle.nn.Linear(200, 300)
    adam = paddle.optimizer.Adam(
        paddle.optimizer.lr.StepDecay(0.1, 2), parameters=layer.parameters()
    )
    layer(paddle.ones([2, 200])).sum().backward()
    adam.step()
    return layer, adam


def large_arrays():
    rng = np.random.default_rng(SEED)
    block = rng.standard_normal((70, 300))
    shared = rng.integers(0, 9, LARGE_BYTES)
    return {
        'c': block,
        'fortran': np.asfortranarray(block),
        'transposed': block.T,
        'strided': np.repeat(block, 2, 0)[::2],
        'big_endian': block.astype('>f8'),
        'record': np.zeros(9000, [('a', 'i4'), ('b', '>f8')]),
        'text': np.full(20000, 'text'),
        'dates': np.arange(20000).astype('M8[s]'),
        'objects': np.array([block, None, 'x', bytes(LARGE_BYTES)], object),
        'zero_d': np.array(3.5),
        'scalar': np.float32(1.5),
        'empty': np.zeros((0, 7)),
        'large_empty': np.zeros((LARGE_BYTES, 0)),
        'shared': shared,
        'shared_again': [shared, (shared, block)],
        'nan': np.full(LARGE_BYTES, np.nan),
    }


def raw_objects():
    shared = os.urandom(3) * LARGE_BYTES
    return [
        shared,
        {'again': shared, 'other': bytearray(shared)},
        bytes(LARGE_BYTES - 1),
        bytearray(),
        b'',
        bytearray(64 * 1024),
        bytes(64 * 1024 - 1),
        {LARGE_BYTES: shared, None: 1 << 100},
        'text' * LARGE_BYTES,
    ]


class Digest:
    """Reads its payload while it is being unpickled."""

    def __init__(self, data):
        self.data = data

    def __setstate__(self, state):
        self.copy = bytes(state['data'])
        self.digest = hashlib.sha256(state['data']).hexdigest()


class Reduced:
    def __init__(self, data):
        self.data = data

    def __reduce__(self):
        return hash, (self.data,)


def python_pickle(value, protocol):
    """As the pickler in pure Python writes it."""
    f = io.BytesIO()
    pickle._Pickler(f, protocol).dump(value)
    return f.getvalue()


def optimized_pickle(value, protocol):
    return pickletools.optimize(pickle.dumps(value, protocol))


def protocols_and_counts():
    return [(p, count) for p in PROTOCOLS for count in COUNTS]


class LoadCase(NumWorkersCase):
    def check_load(self, num_workers, in_parallel, path=None, **options):
        """Compares paddle.load with and without num_workers."""
        path = path or self.path
        expected = outcome(paddle.load, path, **options)
        with small_thresholds(), attempts() as ends:
            found = outcome(
                paddle.load, path, num_workers=num_workers, **options
            )
        self.assertEqual(expected[0], 'value', expected)
        self.assertEqual(found, expected)
        self.assertEqual([end is None for end in ends], [in_parallel])


class TestSavedByPaddle(LoadCase):
    def check_all_forms(self, value, protocol, num_workers):
        paddle.save(value, self.path, protocol=min(protocol, 4))
        if protocol == 5:  # not every release writes it
            self.dump(self.unpickle(1), 5)
        for return_numpy in False, True:
            for keep_name_table in False, True:
                self.check_load(
                    num_workers,
                    protocol >= 4,
                    return_numpy=return_numpy,
                    keep_name_table=keep_name_table,
                )

    @parameterized.expand(protocols_and_counts())
    def test_tensors(self, protocol, num_workers):
        self.check_all_forms(large_tensors(), protocol, num_workers)

    @parameterized.expand(protocols_and_counts())
    def test_layer_and_its_optimizer(self, protocol, num_workers):
        layer, adam = trained_layer()
        self.check_all_forms(layer.state_dict(), protocol, num_workers)
        self.check_all_forms(adam.state_dict(), protocol, num_workers)

    @parameterized.expand([(2,), (4,)])
    def test_nested_objects(self, protocol):
        tensors = large_tensors()
        tensor = tensors['float32']
        value = {
            'list': [tensor, {'deep': (tensors['bfloat16'], 'text', 3)}],
            'again': tensor,
            'ordered': OrderedDict(a=tensors['transposed'], b=None),
        }
        self.check_all_forms(value, protocol, 2)

    def test_single_tensor(self):
        self.path = os.path.join(self.directory, 'one.pdtensor')
        paddle.save(large_tensors()['float32'], self.path)
        self.check_load(2, True)
        self.check_load(2, True, return_numpy=True)

    def test_loaded_state_restores_a_layer(self):
        layer, _ = trained_layer()
        paddle.save(layer.state_dict(), self.path)
        other = paddle.nn.Linear(200, 300)
        with small_thresholds(), attempts() as ends:
            state = paddle.load(self.path, num_workers=2)
        other.set_state_dict(state)
        np.testing.assert_array_equal(other.weight, layer.weight)
        self.assertEqual(ends, [None])

    def test_thresholds_as_they_are(self):
        """An ordinary file, whose tensors are split between the workers."""
        paddle.save({'w': paddle.randn([3 << 20])}, self.path)
        for num_workers in COUNTS:
            expected = outcome(paddle.load, self.path)
            with attempts() as ends:
                found = outcome(paddle.load, self.path, num_workers=num_workers)
            self.assertEqual(found, expected)
            self.assertEqual(ends, [None])

    def test_file_of_small_tensors_is_loaded_serially(self):
        paddle.save({str(n): paddle.ones([9]) for n in range(99)}, self.path)
        self.check_load(2, False)


class TestUnpickled(NumWorkersCase):
    """Objects that paddle.load would convert or refuse afterwards."""

    def check(self, protocol, num_workers):
        with small_thresholds():
            expected, ends = self.check_same_unpickled(num_workers)
        self.assertEqual(expected[0], 'value', expected)
        self.assertEqual([end is None for end in ends], [protocol >= 4])

    @parameterized.expand(protocols_and_counts())
    def test_arrays(self, protocol, num_workers):
        self.dump(large_arrays(), protocol)
        self.check(protocol, num_workers)

    @parameterized.expand(protocols_and_counts())
    def test_raw_objects(self, protocol, num_workers):
        self.dump(raw_objects(), protocol)
        self.check(protocol, num_workers)

    @parameterized.expand(protocols_and_counts())
    def test_pickler_in_python(self, protocol, num_workers):
        arrays = large_arrays()
        # A second empty array is one too many for the pickler in Python.
        del arrays['large_empty']
        self.write(python_pickle([arrays, raw_objects()[:3]], protocol))
        self.check(protocol, num_workers)

    @parameterized.expand(protocols_and_counts())
    def test_optimized(self, protocol, num_workers):
        value = [large_arrays(), raw_objects()]
        self.write(optimized_pickle(value, protocol))
        self.check(protocol, num_workers)

    @parameterized.expand([(4,), (5,)])
    def test_sharing_is_kept(self, protocol):
        shared = np.arange(LARGE_BYTES)
        self.dump([shared, b'x' * LARGE_BYTES, shared], protocol)
        with small_thresholds(), attempts() as ends:
            first, _, last = self.unpickle(8)
        self.assertIs(first, last)
        self.assertTrue(first.flags.writeable)
        self.assertEqual(ends, [None])

    @parameterized.expand([(4,), (5,)])
    def test_first_of_several_pickles(self, protocol):
        one, two = (
            pickle.dumps(np.full(LARGE_BYTES, number), protocol)
            for number in (1, 2)
        )
        self.write(one + two)
        self.check(protocol, 2)
        self.assertEqual(self.unpickle(2)[0], 1)

    @parameterized.expand([(4,), (5,)])
    def test_random_objects(self, protocol):
        rng = np.random.default_rng(SEED + protocol)
        for number in range(30):
            sizes = rng.choice([0, 9, 16383, 16384, 20000, 70000], 12)
            self.dump(
                [
                    rng.integers(0, 256, size).astype(rng.choice(['u1', '>f4']))
                    for size in sizes
                ],
                protocol,
            )
            piece_bytes = int(rng.integers(1, 100_000))
            with small_thresholds(max(piece_bytes, 500)):
                self.check_same_unpickled(
                    int(rng.integers(2, 9)), f'seed {SEED}, object {number}'
                )

    @parameterized.expand([(kind, p) for kind in ('bytes', 'bytearray')
                           for p in (4, 5)])  # fmt: skip
    def test_objects_that_read_their_payload(self, kind, protocol):
        data = bytes(range(256)) * 300
        data = bytearray(data) if kind == 'bytearray' else data
        value = [Digest(data), Digest(bytes(data[::-1])), Reduced(bytes(data))]
        self.dump(value, protocol)
        expected = fingerprint(self.unpickle(1))
        with small_thresholds(), attempts() as ends, last_piece_first():
            found = fingerprint(self.unpickle(32))
        self.assertEqual(found, expected)
        self.assertEqual(ends, [None])


def last_piece_first():
    """Holds back the pieces in front until the last one has been read."""
    last_is_read = threading.Event()
    offsets = []

    def stand_in(preadv, fd, views, offset):
        offsets.append(offset)
        file_bytes = os.fstat(fd).st_size
        if offset + sum(map(len, views)) > file_bytes - 200:
            try:
                return preadv(fd, views, offset)
            finally:
                last_is_read.set()
        # As many workers as pieces, so somebody reads the last one.
        last_is_read.wait()
        return preadv(fd, views, offset)

    return preadv_replaced(stand_in)


class TestOtherSources(LoadCase):
    def test_file_objects_are_read_by_their_own_methods(self):
        data = pickle.dumps(large_arrays()['c'], 4)
        with small_thresholds(), attempts() as ends:
            found = paddle.load(
                io.BytesIO(data), num_workers=2, return_numpy=True
            )
            packed = os.path.join(self.directory, 'packed.gz')
            with gzip.open(packed, 'wb') as f:
                f.write(data)
            with gzip.open(packed, 'rb') as f:
                unpacked = io_utils._load_pickle(pickle.load, f, f, 2)
        np.testing.assert_array_equal(found, large_arrays()['c'])
        np.testing.assert_array_equal(unpacked, large_arrays()['c'])
        self.assertEqual(ends, [])

    def test_safetensors_takes_num_workers(self):
        try:
            from safetensors.numpy import save_file
        except ImportError:
            self.skipTest('safetensors is not installed')
        save_file({'w': np.arange(9)}, self.path)
        for num_workers in None, 2:
            loaded = paddle.load(
                self.path,
                safetensors=True,
                num_workers=num_workers,
                return_numpy=True,
            )
            np.testing.assert_array_equal(loaded['w'], np.arange(9))

    def test_files_of_another_project(self):
        try:
            files = metadata.files('paddle-lpips')
        except metadata.PackageNotFoundError:
            self.skipTest('paddle-lpips is not installed')
        paths = [
            str(file.locate()) for file in files if file.suffix == '.pdparams'
        ]
        self.assertTrue(paths)
        for path in paths:
            for return_numpy in False, True:
                expected = outcome(paddle.load, path, return_numpy=return_numpy)
                with small_thresholds():
                    found = outcome(
                        paddle.load,
                        path,
                        num_workers=2,
                        return_numpy=return_numpy,
                    )
                self.assertEqual(expected[0], 'value', path)
                self.assertEqual(found, expected, path)


WRONG_ARGUMENTS = [
    ('true', True, TypeError),
    ('false', False, TypeError),
    ('float', 2.0, TypeError),
    ('text', '2', TypeError),
    ('list', [2], TypeError),
    ('negative', -1, ValueError),
]
opened = []
# An audit hook stays for good, so there is one for all tests.
sys.addaudithook(
    lambda event, args: opened.append(args[0]) if event == 'open' else None
)


class TestArgument(LoadCase):
    @parameterized.expand(WRONG_ARGUMENTS)
    def test_wrong_argument(self, name, num_workers, error):
        self.dump({'w': np.ones(3)})
        missing = os.path.join(self.directory, 'missing')
        for source in self.path, io.BytesIO(b''), missing:
            opened.clear()
            with self.assertRaisesRegex(error, 'num_workers') as caught:
                paddle.load(source, num_workers=num_workers)
            self.assertNotIn(source, opened)
            self.assertIn(repr(num_workers), str(caught.exception))

    @parameterized.expand(WRONG_ARGUMENTS)
    def test_wrong_argument_with_safetensors(self, name, num_workers, error):
        with self.assertRaisesRegex(error, 'num_workers'):
            paddle.load(io.BytesIO(), safetensors=True, num_workers=num_workers)

    @parameterized.expand([(None,), (0,), (1,), (2,), (np.int64(3),)])
    def test_right_argument(self, num_workers):
        paddle.save({'w': paddle.ones([LARGE_BYTES])}, self.path)
        expected = outcome(paddle.load, self.path)
        with small_thresholds(), attempts() as ends:
            found = outcome(paddle.load, self.path, num_workers=num_workers)
        self.assertEqual(found, expected)
        self.assertEqual(ends, [None] if (num_workers or 0) > 1 else [])

    def test_missing_file(self):
        missing = os.path.join(self.directory, 'missing')
        self.assertEqual(
            outcome(paddle.load, missing, num_workers=2),
            outcome(paddle.load, missing),
        )


if __name__ == '__main__':
    unittest.main()
