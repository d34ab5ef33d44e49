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
import safetensors.numpy
import safetensors.paddle
from num_workers_case import (
    log_records,
    preadv_replaced,
    small_thresholds,
    warnings_in,
)
from paddle.framework import io as paddle_io
from paddle.framework import io_utils, safetensors_reader
from parameterized import parameterized
from safetensors_case import (
    SafetensorsCase,
    attempts,
    described,
    file_of,
    header_bytes,
    outcome,
)

SHAPES = [(), (1,), (5,), (3, 4), (1, 1, 2, 1), (129, 33)]
DTYPES = list(safetensors_reader._DTYPES)


class TestResults(SafetensorsCase):
    @parameterized.expand(DTYPES)
    def test_dtype(self, dtype):
        self.write(file_of({f'{s}': (dtype, s) for s in SHAPES}))
        self.check_read_in_parallel()

    @parameterized.expand(['BF16', 'F8_E4M3', 'F8_E5M2', 'F8_E8M0'])
    def test_dtype_for_the_library(self, dtype):
        """One such tensor is enough: the library tells what becomes of it."""
        self.write(file_of({'a': ('F32', (4,)), 'b': (dtype, (4,))}))
        self.check_left_to_library(f"'b' is of dtype {dtype}")

    def test_mixed_dtypes_leave_tensors_unaligned(self):
        tensors = {
            f'{n}.{d}': (d, (3, n)) for n in (1, 3) for d in reversed(DTYPES)
        }
        self.write(file_of(tensors))
        self.check_read_in_parallel()

    @parameterized.expand([((0,),), ((0, 3),), ((3, 0, 2),)])
    def test_empty_arrays(self, shape):
        tensors = {'a': ('F32', shape), 'b': ('I64', (2,)), 'c': ('U8', shape)}
        self.write(file_of(tensors))
        self.check_read_in_parallel()

    def test_only_empty_arrays(self):
        self.write(file_of({'a': ('F32', (0, 2))}))
        self.check_left_to_library('its tensors are empty')

    def test_no_tensors(self):
        self.write(header_bytes({}))
        self.check_left_to_library('its tensors are empty')

    @parameterized.expand(
        [(n, piece) for n in (2, 3, 8, 100) for piece in (1, 7, 100, 100_000)]
    )
    def test_pieces_and_workers(self, num_workers, piece):
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
            found = outcome(self.load, num_workers)
        self.assertEqual(ends, [None])
        self.assertEqual(found, outcome(self.load, 1))

    def test_thresholds_as_they_are(self):
        least = io_utils._MIN_PARALLEL_BYTES
        for file_bytes, parallel in (least - 1, False), (least, True):
            header, _ = described({'a': ('U8', (least,))})
            overhead = len(header_bytes(header))
            self.write(file_of({'a': ('U8', (file_bytes - overhead,))}))
            self.assertEqual(os.path.getsize(self.path), file_bytes)
            with attempts() as ends:
                found = outcome(self.load, 8)
            self.assertEqual(ends[0] is None, parallel)
            self.assertEqual(found, outcome(self.load, 1))

    def test_huge_pages(self):
        large = io_utils._MIN_HUGE_PAGE_PAYLOAD_BYTES
        self.write(file_of({'a': ('U8', (large,)), 'b': ('U8', (3,))}))
        advised = []
        with (
            mock.patch.object(
                io_utils, '_madvise', lambda: lambda *args: advised.append(args)
            ),
        ):
            found = outcome(self.load, 2)
        self.assertEqual(len(advised), 1)
        self.assertEqual(found, outcome(self.load, 1))


class TestNames(SafetensorsCase):
    def test_order_is_that_of_the_data(self):
        header, length = described(
            dict.fromkeys(('z', 'a', 'k', 'b'), ('U8', (2,)))
        )
        shuffled = {key: header[key] for key in ('a', 'z', 'b', 'k')}
        self.write(header_bytes(shuffled) + bytes(range(length)))
        self.check_read_in_parallel()
        with small_thresholds():
            self.assertEqual(list(self.load()), ['z', 'a', 'k', 'b'])

    def test_unusual_names(self):
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
        self.check_read_in_parallel()

    def test_escaped_names(self):
        text = (
            rb'{"\u00e9\ud83d\ude00":{"dtype":"U8","shape":[2],'
            rb'"data_offsets":[0,2]}}'
        )
        self.write(header_bytes(text) + b'ab')
        self.check_read_in_parallel()

    def test_metadata(self):
        header, length = described({'a': ('U8', (5,))})
        header = {'__metadata__': {'format': 'pt', 'a': 'b'}, **header}
        self.write(header_bytes(header) + bytes(length))
        self.check_read_in_parallel()

    def test_padded_header(self):
        text = (
            b'{"a":{"data_offsets":[0,4],"shape":[1],"dtype":"F32"}}' + b' ' * 9
        )
        self.write(header_bytes(text) + b'abcd')
        self.check_read_in_parallel()

    def test_packed_dict(self):
        """Large values that `paddle.save` once split are put together."""
        packed = {
            'UnpackBigParamInfor@@': ('U8', (1,)),
            'a': ('U8', (7,)),
        }
        self.write(file_of(packed))
        self.check_read_in_parallel()


class TestIndependence(SafetensorsCase):
    def setUp(self):
        super().setUp()
        self.tensors = {f'{n}': ('F32', (50, 7)) for n in range(4)}
        self.write(file_of(self.tensors))

    def load_in_parallel(self):
        with small_thresholds(), attempts() as ends:
            value = self.load()
        self.assertEqual(ends, [None])
        return value

    def test_file_may_change_afterwards(self):
        value = self.load_in_parallel()
        expected = outcome(lambda: value)
        with open(self.path, 'r+b') as f:
            f.write(b'\xff' * os.path.getsize(self.path))
        self.assertEqual(outcome(lambda: value), expected)
        os.truncate(self.path, 0)
        self.assertEqual(outcome(lambda: value), expected)

    def test_writing_changes_one_tensor(self):
        value = self.load_in_parallel()
        before = {key: np.array(item) for key, item in value.items()}
        value['1'][3] = 5.0
        for key, item in value.items():
            same = np.array_equal(np.array(item), before[key])
            self.assertEqual(same, key != '1')
        self.assertEqual(float(value['1'][3, 6]), 5.0)
        again = self.load_in_parallel()
        self.assertTrue(np.array_equal(np.array(again['1']), before['1']))

    def test_tensors_outlive_the_dict(self):
        value = self.load_in_parallel()
        expected = np.array(value['2'])
        kept = value.pop('2')
        del value
        gc.collect()
        waste = [bytearray(b'\xee' * expected.nbytes) for _ in range(99)]
        self.assertTrue(np.array_equal(np.array(kept), expected))
        del waste

    def test_arrays_train(self):
        value = self.load_in_parallel()
        weight = paddle.to_tensor(value['0'].view('int8').astype('float32'))
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

    @parameterized.expand([(None,), (0,), (1,)])
    def test_serial_load_is_the_librarys(self, workers):
        calls = []

        def load_file(*args, **options):
            calls.append((args, options))
            return {'loaded': np.zeros(1)}

        with (
            small_thresholds(),
            attempts() as ends,
            mock.patch.object(safetensors.numpy, 'load_file', load_file),
        ):
            value = self.load(workers)
        self.assertEqual(calls, [((self.path,), {})])
        self.assertEqual(list(value), ['loaded'])
        self.assertEqual(ends, [])

    def check_tensors_are_the_librarys(self, load, options):
        """With 8 workers; `options` are those that the library is given."""
        reads = []

        def counted(preadv, *args):
            reads.append(args)
            return preadv(*args)

        with (
            small_thresholds(),
            attempts() as ends,
            log_records() as records,
            preadv_replaced(counted),
            mock.patch.object(
                safetensors.paddle,
                'load_file',
                wraps=safetensors.paddle.load_file,
            ) as load_file,
        ):
            found = outcome(load, 8)
        self.assertEqual(
            load_file.call_args_list, [mock.call(self.path, **options)]
        )
        self.assertEqual((ends, reads, records), ([], [], []))
        self.assertEqual(found[0], 'value')
        self.assertEqual(found, outcome(load, 1))

    def test_tensors(self):
        def load(num_workers):
            return self.load(num_workers, return_numpy=False)

        self.check_tensors_are_the_librarys(load, {'device': 'cpu'})

    def test_tensors_of_legacy_load(self):
        def load(num_workers):
            return paddle_io._legacy_load(
                self.path, safetensors=True, num_workers=num_workers
            )

        self.check_tensors_are_the_librarys(load, {})

    def test_file_object(self):
        with open(self.path, 'rb') as f:
            buffer = io.BytesIO(f.read())
        with small_thresholds(), attempts() as ends:
            found = outcome(self.load, 2, buffer)
        self.assertEqual(found, outcome(self.load, 1, buffer))
        self.assertEqual(ends, [])

    def test_path_object(self):
        path = pathlib.Path(self.path)
        self.check_read_in_parallel(path=path)

    @parameterized.expand([(-1, ValueError), (True, TypeError)])
    def test_wrong_num_workers(self, value, error):
        with attempts() as ends, self.assertRaises(error):
            self.load(value)
        self.assertEqual(ends, [])

    def test_static_mode(self):
        paddle.enable_static()
        self.addCleanup(paddle.disable_static)
        self.check_read_in_parallel()

    def test_library_without_the_order(self):
        class OldHandle:
            def __init__(self, path, framework):
                pass

            def __enter__(self):
                return self

            def __exit__(self, *exc_info):
                pass

        with mock.patch.object(safetensors, 'safe_open', OldHandle):
            self.check_left_to_library('safetensors 0.6')

    def test_library_that_knows_of_other_bytes(self):
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
            self.check_left_to_library('the end of the file')

    def test_other_platforms(self):
        other = SimpleNamespace(byteorder='big')
        with mock.patch.object(safetensors_reader, 'sys', other):
            self.check_left_to_library('big-endian')
        other = SimpleNamespace(name='other')
        with mock.patch.object(io_utils.sys, 'implementation', other):
            self.check_left_to_library('platform')

    def test_reason_is_told_in_the_debug_log(self):
        with log_records() as records:
            self.load()
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
            # Offloaded tensors are loaded as arrays.
            parallel = offload and num_workers > 1
            self.assertEqual(ends, [None] * parallel)
        self.assertEqual(found[8], found[1])
        self.assertFalse(paddle.any(state_dict['a'] == 7.0))


if __name__ == '__main__':
    unittest.main()
