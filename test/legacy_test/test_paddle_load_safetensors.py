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

"""paddle.load(safetensors=True, num_workers=...) against the library's load."""

import contextlib
import gc
import io
import json
import os
import pathlib
import unittest
from types import SimpleNamespace
from unittest import mock

import numpy as np
import paddle
import paddle.distributed as dist
import safetensors
from num_workers_case import log_records, small_thresholds, warnings_in
from paddle.framework import io as paddle_io
from paddle.framework import io_utils, safetensors_reader
from parameterized import parameterized
from safetensors_case import (
    BOTH_KINDS,
    SafetensorsCase,
    attempts,
    described,
    file_of,
    header_bytes,
    outcome,
)

SHAPES = [(), (1,), (5,), (3, 4), (1, 1, 2, 1), (129, 33)]
ARRAY_DTYPES = list(safetensors_reader._ARRAY_DTYPES)
TENSOR_DTYPES = list(safetensors_reader._TENSOR_DTYPES)
SHARED_DTYPES = list(safetensors_reader._SHARED_DTYPES)


class TestResults(SafetensorsCase):
    @parameterized.expand(
        [(f'arrays_{d}', True, d) for d in ARRAY_DTYPES]
        + [(f'tensors_{d}', False, d) for d in TENSOR_DTYPES]
    )
    def test_dtype(self, name, return_numpy, dtype):
        self.write(file_of({f'{s}': (dtype, s) for s in SHAPES}))
        self.check_read_in_parallel(return_numpy)

    @parameterized.expand(
        [(d, True, d) for d in ('BF16', 'F8_E4M3', 'F8_E5M2', 'F8_E8M0')]
        + [(d, False, d) for d in ('U16', 'U32', 'U64', 'F8_E8M0')]
    )
    def test_dtype_for_the_library(self, name, return_numpy, dtype):
        """One such tensor is enough: the library tells what becomes of it."""
        self.write(file_of({'a': ('F32', (4,)), 'b': (dtype, (4,))}))
        self.check_left_to_library(return_numpy, f"'b' is of dtype {dtype}")

    @parameterized.expand(BOTH_KINDS)
    def test_mixed_dtypes_leave_tensors_unaligned(self, name, return_numpy):
        tensors = {
            f'{n}.{d}': (d, (3, n))
            for n in (1, 3)
            for d in reversed(SHARED_DTYPES)
        }
        self.write(file_of(tensors))
        self.check_read_in_parallel(return_numpy)

    @parameterized.expand([((0,),), ((0, 3),), ((3, 0, 2),)])
    def test_empty_arrays(self, shape):
        tensors = {'a': ('F32', shape), 'b': ('I64', (2,)), 'c': ('U8', shape)}
        self.write(file_of(tensors))
        self.check_read_in_parallel(True)

    def test_only_empty_arrays(self):
        self.write(file_of({'a': ('F32', (0, 2))}))
        self.check_left_to_library(True, 'its tensors are empty')

    def test_no_tensors(self):
        self.write(header_bytes({}))
        self.check_left_to_library(True, 'its tensors are empty')
        self.check_left_to_library(False, 'its tensors are empty')

    def test_empty_tensor(self):
        self.write(file_of({'a': ('F32', (2, 0))}))
        self.check_left_to_library(False, "'a' is empty")

    @parameterized.expand(
        [
            (f'{name}_{n}_{piece}', kind, n, piece)
            for name, kind in BOTH_KINDS
            for n in (2, 3, 8, 100)
            for piece in (1, 7, 100, 100_000)
        ]
    )
    def test_pieces_and_workers(self, name, return_numpy, num_workers, piece):
        tensors = {f'{n}': ('I16', (n,)) for n in (1, 50, 3, 40, 2)}
        self.write(file_of(tensors))
        with (
            mock.patch.multiple(
                io_utils,
                _MIN_PARALLEL_BYTES=1,
                _PIECE_BYTES=piece,
                _MIN_PIECE_BYTES=1,
            ),
            attempts() as ends,
        ):
            found = outcome(self.load, return_numpy, num_workers)
        self.assertEqual(ends, [None])
        self.assertEqual(found, outcome(self.load, return_numpy, 1))

    @parameterized.expand(BOTH_KINDS)
    def test_thresholds_as_they_are(self, name, return_numpy):
        least = io_utils._MIN_PARALLEL_BYTES
        for file_bytes, parallel in (least - 1, False), (least, True):
            header, _ = described({'a': ('U8', (least,))})
            overhead = len(header_bytes(header))
            self.write(file_of({'a': ('U8', (file_bytes - overhead,))}))
            self.assertEqual(os.path.getsize(self.path), file_bytes)
            with attempts() as ends:
                found = outcome(self.load, return_numpy, 8)
            self.assertEqual(ends[0] is None, parallel)
            self.assertEqual(found, outcome(self.load, return_numpy, 1))

    @parameterized.expand(BOTH_KINDS)
    def test_huge_pages(self, name, return_numpy):
        large = io_utils._MIN_HUGE_PAGE_PAYLOAD_BYTES
        self.write(file_of({'a': ('U8', (large,)), 'b': ('U8', (3,))}))
        advised = []
        with (
            mock.patch.object(
                io_utils, '_madvise', lambda: lambda *args: advised.append(args)
            ),
        ):
            found = outcome(self.load, return_numpy, 2)
        self.assertEqual(len(advised), 1)
        self.assertEqual(found, outcome(self.load, return_numpy, 1))


class TestNames(SafetensorsCase):
    @parameterized.expand(BOTH_KINDS)
    def test_order_is_that_of_the_data(self, name, return_numpy):
        header, length = described(
            dict.fromkeys(('z', 'a', 'k', 'b'), ('U8', (2,)))
        )
        shuffled = {key: header[key] for key in ('a', 'z', 'b', 'k')}
        self.write(header_bytes(shuffled) + bytes(range(length)))
        self.check_read_in_parallel(return_numpy)
        with small_thresholds():
            self.assertEqual(
                list(self.load(return_numpy)), ['z', 'a', 'k', 'b']
            )

    @parameterized.expand(BOTH_KINDS)
    def test_unusual_names(self, name, return_numpy):
        names = [
            '',
            'é',
            '\U0001f600',
            '中文',
            'a"b\\c',
            '\n\0',
            ' ',
            'x' * 999,
        ]
        self.write(file_of(dict.fromkeys(names, ('F32', (2,)))))
        self.check_read_in_parallel(return_numpy)

    @parameterized.expand(BOTH_KINDS)
    def test_escaped_names(self, name, return_numpy):
        text = (
            rb'{"\u00e9\ud83d\ude00":{"dtype":"U8","shape":[2],'
            rb'"data_offsets":[0,2]}}'
        )
        self.write(header_bytes(text) + b'ab')
        self.check_read_in_parallel(return_numpy)

    @parameterized.expand(BOTH_KINDS)
    def test_metadata(self, name, return_numpy):
        header, length = described({'a': ('U8', (5,))})
        header = {'__metadata__': {'format': 'pt', 'a': 'b'}, **header}
        self.write(header_bytes(header) + bytes(length))
        self.check_read_in_parallel(return_numpy)

    @parameterized.expand(BOTH_KINDS)
    def test_padded_header(self, name, return_numpy):
        text = (
            b'{"a":{"data_offsets":[0,4],"shape":[1],"dtype":"F32"}}' + b' ' * 9
        )
        self.write(header_bytes(text) + b'abcd')
        self.check_read_in_parallel(return_numpy)

    def test_packed_dict(self):
        """Large values that `paddle.save` once split are put together."""
        packed = {
            'UnpackBigParamInfor@@': ('U8', (1,)),
            'a': ('U8', (7,)),
        }
        self.write(file_of(packed))
        self.check_read_in_parallel(True)


class TestIndependence(SafetensorsCase):
    def setUp(self):
        super().setUp()
        self.tensors = {f'{n}': ('F32', (50, 7)) for n in range(4)}
        self.write(file_of(self.tensors))

    def load_in_parallel(self, return_numpy):
        with small_thresholds(), attempts() as ends:
            value = self.load(return_numpy)
        self.assertEqual(ends, [None])
        return value

    @parameterized.expand(BOTH_KINDS)
    def test_file_may_change_afterwards(self, name, return_numpy):
        value = self.load_in_parallel(return_numpy)
        expected = outcome(lambda: value)
        with open(self.path, 'r+b') as f:
            f.write(b'\xff' * os.path.getsize(self.path))
        self.assertEqual(outcome(lambda: value), expected)
        os.truncate(self.path, 0)
        self.assertEqual(outcome(lambda: value), expected)

    @parameterized.expand(BOTH_KINDS)
    def test_writing_changes_one_tensor(self, name, return_numpy):
        value = self.load_in_parallel(return_numpy)
        before = {key: np.array(item) for key, item in value.items()}
        value['1'][3] = 5.0
        for key, item in value.items():
            same = np.array_equal(np.array(item), before[key])
            self.assertEqual(same, key != '1')
        self.assertEqual(float(value['1'][3, 6]), 5.0)
        again = self.load_in_parallel(return_numpy)
        self.assertTrue(np.array_equal(np.array(again['1']), before['1']))

    @parameterized.expand(BOTH_KINDS)
    def test_tensors_outlive_the_dict(self, name, return_numpy):
        value = self.load_in_parallel(return_numpy)
        expected = np.array(value['2'])
        kept = value.pop('2')
        del value
        gc.collect()
        waste = [bytearray(b'\xee' * expected.nbytes) for _ in range(99)]
        self.assertTrue(np.array_equal(np.array(kept), expected))
        del waste

    def test_tensors_train(self):
        value = self.load_in_parallel(False)
        weight = value['0'].view(paddle.int8).astype('float32')
        layer = paddle.nn.Linear(50, 28)
        layer.set_state_dict({'weight': weight, 'bias': weight[0]})
        optimizer = paddle.optimizer.SGD(0.5, layer.parameters())
        layer(paddle.ones([1, 50])).sum().backward()
        optimizer.step()
        self.assertTrue(
            np.array_equal(layer.weight.numpy(), weight.numpy() - 0.5)
        )


class TestWhatIsLeftAlone(SafetensorsCase):
    def setUp(self):
        super().setUp()
        self.write(file_of({'a': ('F32', (5, 5)), 'b': ('I32', (3,))}))

    @parameterized.expand(
        [
            (f'{name}_{n}', kind, n)
            for name, kind in BOTH_KINDS
            for n in (None, 0, 1)
        ]
    )
    def test_serial_load_is_the_librarys(self, name, return_numpy, workers):
        module = safetensors.numpy if return_numpy else safetensors.paddle
        calls = []

        def load_file(*args, **options):
            calls.append((args, options))
            return {'loaded': np.zeros(1)}

        with (
            small_thresholds(),
            attempts() as ends,
            mock.patch.object(module, 'load_file', load_file),
        ):
            value = self.load(return_numpy, workers)
        options = {} if return_numpy else {'device': 'cpu'}
        self.assertEqual(calls, [((self.path,), options)])
        self.assertEqual(list(value), ['loaded'])
        self.assertEqual(ends, [])

    def test_file_object(self):
        for kind in True, False:
            with open(self.path, 'rb') as f:
                buffer = io.BytesIO(f.read())
            with small_thresholds(), attempts() as ends:
                found = outcome(self.load, kind, 2, buffer)
            self.assertEqual(found, outcome(self.load, kind, 1, buffer))
            self.assertEqual(ends, [])

    @parameterized.expand(BOTH_KINDS)
    def test_path_object(self, name, return_numpy):
        path = pathlib.Path(self.path)
        self.check_read_in_parallel(return_numpy, path=path)

    def test_legacy_load(self):
        def legacy_load(num_workers):
            return paddle_io._legacy_load(
                self.path, safetensors=True, num_workers=num_workers
            )

        with small_thresholds(), attempts() as ends:
            found = outcome(legacy_load, 2)
        self.assertEqual(ends, [None])
        self.assertEqual(found, outcome(legacy_load, 1))

    @parameterized.expand([(-1, ValueError), (True, TypeError)])
    def test_wrong_num_workers(self, value, error):
        with attempts() as ends, self.assertRaises(error):
            self.load(True, value)
        self.assertEqual(ends, [])

    def test_other_place(self):
        with mock.patch.object(
            safetensors_reader, '_current_expected_place_', lambda: 'gpu:0'
        ):
            self.check_left_to_library(False, 'go to gpu:0')
            self.check_read_in_parallel(True)

    def test_static_mode(self):
        paddle.enable_static()
        self.addCleanup(paddle.disable_static)
        self.check_left_to_library(False, 'eager')

    def test_arrays_in_static_mode(self):
        paddle.enable_static()
        self.addCleanup(paddle.disable_static)
        self.check_read_in_parallel(True)

    def test_library_that_makes_tensors_of_arrays(self):
        with mock.patch.object(paddle, '__version__', '0.0.0'):
            self.check_left_to_library(False, 'arrays for Paddle 0.0.0')
            self.check_read_in_parallel(True)

    @parameterized.expand(BOTH_KINDS)
    def test_library_without_the_order(self, name, return_numpy):
        class OldHandle:
            def __init__(self, path, framework):
                pass

            def __enter__(self):
                return self

            def __exit__(self, *exc_info):
                pass

        with mock.patch.object(safetensors, 'safe_open', OldHandle):
            self.check_left_to_library(return_numpy, 'safetensors 0.6')

    def test_library_without_tensors(self):
        safe_open = safetensors.safe_open

        def arrays_only(path, framework):
            if framework != 'np':
                raise safetensors.SafetensorError('framework is invalid')
            return safe_open(path, framework)

        with mock.patch.object(safetensors, 'safe_open', arrays_only):
            self.check_left_to_library(False, 'framework is invalid')
            self.check_read_in_parallel(True)

    @parameterized.expand(BOTH_KINDS)
    def test_library_that_knows_of_other_bytes(self, name, return_numpy):
        """As if the file had grown while it was opened."""
        safe_open = safetensors.safe_open

        @contextlib.contextmanager
        def without_the_last(path, framework):
            with safe_open(path, framework) as handle:
                yield SimpleNamespace(
                    offset_keys=lambda: handle.offset_keys()[:-1],
                    get_slice=handle.get_slice,
                )

        with mock.patch.object(safetensors, 'safe_open', without_the_last):
            self.check_left_to_library(return_numpy, 'the end of the file')

    @parameterized.expand(BOTH_KINDS)
    def test_other_platforms(self, name, return_numpy):
        other = SimpleNamespace(byteorder='big')
        with mock.patch.object(safetensors_reader, 'sys', other):
            self.check_left_to_library(return_numpy, 'big-endian')
        other = SimpleNamespace(name='other')
        with mock.patch.object(io_utils.sys, 'implementation', other):
            self.check_left_to_library(return_numpy, 'platform')

    @parameterized.expand(BOTH_KINDS)
    def test_reason_is_told_in_the_debug_log(self, name, return_numpy):
        with log_records() as records:
            self.load(return_numpy)
        [record] = records
        self.assertIn('bytes', record.getMessage())
        self.assertIn(self.path, record.getMessage())
        self.assertEqual(warnings_in(records), [])


class TestLoadStateDict(SafetensorsCase):
    @parameterized.expand([('tensors', False), ('arrays', True)])
    def test_hugging_face_checkpoint(self, name, offload):
        tensors = {'a': ('F32', (64, 32)), 'b': ('F32', (3,))}
        file_name = 'model-00001-of-00001.safetensors'
        self.write(file_of(tensors), os.path.join(self.directory, file_name))
        index = {
            'metadata': {'total_size': 4 * (64 * 32 + 3)},
            'weight_map': dict.fromkeys(tensors, file_name),
        }
        self.write(
            json.dumps(index).encode(),
            os.path.join(self.directory, 'model.safetensors.index.json'),
        )
        found = {}
        for num_workers in 1, 8:
            state_dict = {
                key: paddle.full(shape, 7.0)
                for key, (_, shape) in tensors.items()
            }
            with small_thresholds(), attempts() as ends:
                dist.load_state_dict(
                    state_dict,
                    self.directory,
                    safetensors=True,
                    offload=offload,
                    num_workers=num_workers,
                )
            found[num_workers] = outcome(lambda value=state_dict: value)
            self.assertEqual(ends, [None] * (num_workers > 1))
        self.assertEqual(found[8], found[1])
        self.assertFalse(paddle.any(state_dict['a'] == 7.0))


if __name__ == '__main__':
    unittest.main()
