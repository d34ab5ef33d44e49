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

"""What the tests of paddle.load(safetensors=True, num_workers=...) share."""

import contextlib
import json
import os
import re
import struct
from unittest import mock

import numpy as np
import paddle
from num_workers_case import (
    NumWorkersCase,
    log_records,
    small_thresholds,
    warnings_in,
)
from paddle.framework import io_utils, safetensors_reader

# Of one item, as the format has them.
ITEM_BYTES = {
    'BOOL': 1, 'I8': 1, 'I16': 2, 'I32': 4, 'I64': 8,
    'U8': 1, 'U16': 2, 'U32': 4, 'U64': 8,
    'F8_E4M3': 1, 'F8_E5M2': 1, 'F8_E8M0': 1,
    'F16': 2, 'BF16': 2, 'F32': 4, 'F64': 8, 'C64': 8,
}  # fmt: skip


def header_bytes(header):
    """A header as a file begins with it, given as an object or its text."""
    if not isinstance(header, bytes):
        header = json.dumps(header, ensure_ascii=False).encode()
    return struct.pack('<Q', len(header)) + header


def described(tensors):
    """The header for {name: (dtype, shape)}, laid out in order."""
    header, offset = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = offset + int(np.prod(shape, dtype='i8')) * ITEM_BYTES[dtype]
        header[name] = {
            'dtype': dtype,
            'shape': list(shape),
            'data_offsets': [offset, end],
        }
        offset = end
    return header, offset


def file_of(tensors, seed=0):
    """The bytes of a file with {name: (dtype, shape)} and random data."""
    header, length = described(tensors)
    data = np.random.default_rng(seed).integers(0, 2, length, 'u1')
    return header_bytes(header) + data.tobytes()


def described_value(value):
    """All that two loads have in common, whatever they number names with."""
    if isinstance(value, dict):
        return type(value), [
            (key, described_value(item)) for key, item in value.items()
        ]
    if isinstance(value, np.ndarray):
        bases, base = [], value.base
        while isinstance(base, np.ndarray):
            bases.append((base.dtype.str, base.shape))
            base = base.base
        return (
            type(value), value.dtype.str, value.shape, value.strides,
            str(value.flags), bases, type(base), value.tobytes(),
        )  # fmt: skip
    # Paddle counts the names that it makes up.
    name = re.sub(r'\d+', 'N', value.name)
    return (
        type(value), value.dtype, list(value.shape), list(value.strides),
        value.is_contiguous(), str(value.place), name, value.stop_gradient,
        value.persistable, value.is_leaf, value.inplace_version,
        value.numpy().tobytes(),
    )  # fmt: skip


def outcome(call, *args, **options):
    """What a call gives: the value described, or the exact exception."""
    try:
        value = call(*args, **options)
    except Exception as error:
        return 'raises', type(error), str(error)
    return 'value', described_value(value)


@contextlib.contextmanager
def attempts():
    """Yields the list of how the parallel attempts ended: None or an error."""
    ends = []
    attempt = safetensors_reader._load_in_parallel

    def recorded(*args):
        try:
            value = attempt(*args)
        except BaseException as error:
            ends.append(error)
            raise
        ends.append(None)
        return value

    with mock.patch.object(safetensors_reader, '_load_in_parallel', recorded):
        yield ends


class SafetensorsCase(NumWorkersCase):
    """A file, loaded with num_workers and without."""

    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.directory, 'model.safetensors')

    def load(self, num_workers=2, path=None, return_numpy=True):
        return paddle.load(
            path or self.path,
            safetensors=True,
            return_numpy=return_numpy,
            num_workers=num_workers,
        )

    def check_same(self, num_workers=2, path=None):
        """The library's outcome; returns how our attempt ended."""
        with small_thresholds(), attempts() as ends, log_records() as records:
            found = outcome(self.load, num_workers, path)
        self.assertEqual(found, outcome(self.load, num_workers=1, path=path))
        self.assertEqual(warnings_in(records), [])
        self.assertEqual(len(ends), 1)
        return ends[0]

    def check_read_in_parallel(self, num_workers=2, path=None):
        end = self.check_same(num_workers, path)
        self.assertIsNone(end)

    def check_left_to_library(self, reason):
        end = self.check_same()
        self.assertIsInstance(end, io_utils._StreamUnsuited)
        self.assertRegex(str(end), reason)
