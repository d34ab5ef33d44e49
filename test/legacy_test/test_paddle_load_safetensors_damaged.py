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

"""Damaged and hostile safetensors files: the library's errors, and only those."""

import contextlib
import json
import random
import re
import struct
import unittest
from unittest import mock

import numpy as np
from num_workers_case import small_thresholds
from paddle.framework import io_utils
from parameterized import parameterized
from safetensors_case import (
    SafetensorsCase,
    attempts,
    described,
    file_of,
    header_bytes,
    outcome,
)

SEED = 20261129
MUTATIONS = 1200

TENSORS = {
    'layer.weight': ('F32', (3, 2)),
    'layer.bias': ('F16', (3,)),
    'step': ('I64', ()),
    'mask': ('BOOL', (5,)),
}

# What a header may lie about, in the place of a number.
NUMBERS = [
    b'-1', b'-0', b'0', b'1', b'2', b'3', b'5', b'6', b'24', b'30', b'1.0',
    b'1e1', b'01', b'1e400', b'null', b'true', b'"3"', b'[]', b'[1]',
    b'2147483648', b'4294967296', b'9223372036854775808',
    b'18446744073709551615', b'18446744073709551616', b'NaN', b'Infinity',
]  # fmt: skip

TOKENS = [
    b'{', b'}', b'[', b']', b',', b':', b'"', b'\\', b'""', b'\\u0041',
    b'\\ud800', b'\xff', b'\xc3\xa9', b'\0', b' ', b'\n', b'F32', b'F64', b'F4',
    b'BF16', b'U8', b'dtype', b'shape', b'data_offsets', b'layer.bias', b'step',
    b'__metadata__',
]  # fmt: skip


@contextlib.contextmanager
def targets():
    """Yields the list of the payloads that memory was asked for."""
    asked, new_target = [], io_utils._new_target

    def recorded(payload):
        asked.append(payload)
        return new_target(payload)

    with mock.patch.object(io_utils, '_new_target', recorded):
        yield asked


def without_culprit(found):
    """Which of two overlapping tensors the library blames is left to chance."""
    if found[0] == 'value':
        return found
    kind, error, message = found
    return kind, error, re.sub(r'for tensor `.*?`', 'for a tensor', message)


class DamagedCase(SafetensorsCase):
    def check(self, data):
        """The library's outcome, and no memory but for what it accepts.

        Returns:
            bool: whether the file was read in parallel.
        """
        self.write(data)
        with small_thresholds(), attempts() as ends, targets() as asked:
            found = outcome(self.load)
        expected = outcome(self.load, 1)
        self.assertEqual(without_culprit(found), without_culprit(expected))
        [end] = ends
        if end is not None:
            self.assertIsInstance(end, io_utils._StreamUnsuited)
            self.assertEqual(asked, [])
        elif found[0] == 'value':
            self.assertEqual(len(asked), len(found[1][1]))
        self.assertEqual(end is None, found[0] == 'value')
        return end is None


class TestTruncated(DamagedCase):
    def test_every_length(self):
        data = file_of(TENSORS)
        for length in range(len(data) + 1):
            with self.subTest(length=length):
                parallel = self.check(data[:length])
                self.assertEqual(parallel, length == len(data))

    def test_bytes_after_the_last_tensor(self):
        self.assertFalse(self.check(file_of(TENSORS) + b'\0'))


class TestMutated(DamagedCase):
    def mutated(self, random_, header):
        """A header with a few changes, some of them to its numbers."""
        for _ in range(random_.choice((1, 1, 1, 2, 3))):
            at = random_.randrange(len(header))
            kind = random_.randrange(6)
            if kind == 0:
                flipped = header[at] ^ 1 << random_.randrange(8)
                header = header[:at] + bytes([flipped]) + header[at + 1 :]
            elif kind == 1:
                end = at + random_.randrange(1, 9)
                header = header[:at] + header[end:]
            elif kind == 2:
                header = header[:at] + random_.choice(TOKENS) + header[at:]
            elif kind == 3:
                end = at + random_.randrange(1, 60)
                header = header[:end] + header[at:]
            else:
                header = self.other_number(random_, header, at)
            if not header:
                break
        return header

    def other_number(self, random_, header, at):
        digits = b'0123456789'
        start = next(
            (n for n in range(at, len(header)) if header[n] in digits), None
        )
        if start is None:
            return header
        end = start
        while end < len(header) and header[end] in digits:
            end += 1
        return header[:start] + random_.choice(NUMBERS) + header[end:]

    def test_mutated_header(self):
        random_ = random.Random(SEED)
        header, length = described(TENSORS)
        header = json.dumps(
            {'__metadata__': {'format': 'pt'}, **header}, indent=0
        ).encode()
        data = np.random.default_rng(SEED).bytes(length)
        accepted = 0
        for number in range(MUTATIONS):
            text = self.mutated(random_, header)
            claimed = len(text)
            if random_.random() < 0.1:
                claimed += random_.choice((-9, -1, 1, 8, length, 1 << 40))
            claimed = struct.pack('<q', claimed)
            with self.subTest(seed=SEED, number=number, header=text):
                accepted += self.check(claimed + text + data)
        # Both outcomes were met often.
        self.assertGreater(accepted, MUTATIONS // 50)
        self.assertLess(accepted, MUTATIONS // 2)


def entry(dtype='U8', shape=(4,), offsets=(0, 4), **more):
    return {
        'dtype': dtype,
        'shape': list(shape),
        'data_offsets': list(offsets),
        **more,
    }


def entry_text(shape='[4]', offsets='[0,4]', name='a'):
    return (
        f'"{name}":{{"dtype":"U8","shape":{shape},"data_offsets":{offsets}}}'
    ).encode()


DATA = b'abcdefgh'
HOSTILE = {
    'empty_file': b'',
    'length_only': struct.pack('<Q', 2),
    'no_header': struct.pack('<Q', 0) + DATA,
    'length_largest': b'\xff' * 8 + DATA,
    'length_overflows': struct.pack('<Q', (1 << 64) - 8) + DATA,
    'length_over_the_cap': struct.pack('<Q', 100_000_001) + DATA,
    'length_beyond_file': struct.pack('<Q', 100) + b'{}',
    'no_json': header_bytes(b'hello') + DATA,
    'json_array': header_bytes(b'[]') + DATA,
    'json_string': header_bytes(b'"a"') + DATA,
    'json_null': header_bytes(b'null'),
    'two_objects': header_bytes(b'{' + entry_text() + b'}{}') + DATA[:4],
    'comma_last': header_bytes(b'{' + entry_text() + b',}') + DATA[:4],
    'no_utf8': header_bytes(b'{"\xff' + entry_text()[2:] + b'}') + DATA[:4],
    'lone_surrogate': header_bytes(
        b'{' + entry_text(name='\\ud800') + b'}'
    )
    + DATA[:4],
    'nested_deeply': header_bytes(b'{"a":' * 5000) + DATA,
    'arrays_nested_deeply': header_bytes(
        b'{' + entry_text(shape='[' * 5000) + b'}'
    )
    + DATA,
    'same_name_next_place': header_bytes(
        b'{' + entry_text() + b',' + entry_text(offsets='[4,8]') + b'}'
    )
    + DATA,
    'same_place': header_bytes({'a': entry(), 'b': entry()}) + DATA[:4],
    'overlap': header_bytes({'a': entry(), 'b': entry(offsets=(2, 6))})
    + DATA[:6],
    'hole_at_start': header_bytes({'a': entry(offsets=(4, 8))}) + DATA,
    'hole_between': header_bytes(
        {'a': entry(shape=(2,), offsets=(0, 2)), 'b': entry(offsets=(4, 8))}
    )
    + DATA,
    'hole_at_end': header_bytes({'a': entry()}) + DATA,
    'hole_and_overlap': header_bytes(
        {
            'a': entry(offsets=(0, 4)),
            'b': entry(shape=(2,), offsets=(2, 4)),
            'c': entry(shape=(2,), offsets=(6, 8)),
        }
    )
    + DATA,
    'offsets_swapped': header_bytes({'a': entry(offsets=(4, 0))}) + DATA[:4],
    'offsets_negative': header_bytes({'a': entry(offsets=(-4, 0))}) + DATA[:4],
    'offsets_past_file': header_bytes(
        {'a': entry(shape=(1 << 40,), offsets=(0, 1 << 40))}
    )
    + DATA,
    'offsets_three': header_bytes({'a': entry(offsets=(0, 4, 8))}) + DATA[:4],
    'offsets_float': header_bytes(b'{' + entry_text(offsets='[0,4.0]') + b'}')
    + DATA[:4],
    'shape_too_small': header_bytes({'a': entry(shape=(3,))}) + DATA[:4],
    'shape_too_large': header_bytes({'a': entry(shape=(5,))}) + DATA[:4],
    'shape_negative': header_bytes({'a': entry(shape=(-2, -2))}) + DATA[:4],
    'shape_overflows_to_fit': header_bytes(
        {'a': entry(shape=(1 << 32, 1 << 32, 4))}
    )
    + DATA[:4],
    'shape_overflows_with_dtype': header_bytes(
        {'a': entry('F64', shape=((1 << 61) + 1,), offsets=(0, 8))}
    )
    + DATA,
    'shape_of_strings': header_bytes(b'{' + entry_text(shape='["4"]') + b'}')
    + DATA[:4],
    'dtype_unknown': header_bytes({'a': entry('Q8')}) + DATA[:4],
    'dtype_lower_case': header_bytes({'a': entry('u8')}) + DATA[:4],
    'dtype_missing': header_bytes({'a': {'shape': [0], 'data_offsets': [0, 0]}}),
    'dtype_of_half_bytes': header_bytes({'a': entry('F4', (8,))}) + DATA[:4],
    'metadata_no_strings': header_bytes({'__metadata__': {'a': 1}, 'b': entry()})
    + DATA[:4],
    'metadata_like_a_tensor': header_bytes({'__metadata__': entry()})
    + DATA[:4],
}  # fmt: skip

# What some versions of the library accept.
DISPUTED = {
    'space_first': header_bytes(b' {' + entry_text() + b'}') + DATA[:4],
    'same_name_and_place': header_bytes(
        b'{' + entry_text() + b',' + entry_text() + b'}'
    )
    + DATA[:4],
}


class TestHostile(DamagedCase):
    @parameterized.expand(HOSTILE)
    def test_rejected(self, what):
        self.assertFalse(self.check(HOSTILE[what]))

    @parameterized.expand(DISPUTED)
    def test_judged_as_the_library_does(self, what):
        self.check(DISPUTED[what])

    def test_header_that_the_entries_above_are_made_of(self):
        text = b'{' + entry_text() + b'}'
        self.assertTrue(self.check(header_bytes(text) + DATA[:4]))
        header = header_bytes({'a': entry(), 'b': entry(offsets=(4, 8))})
        self.assertTrue(self.check(header + DATA))

    def test_unknown_fields(self):
        header = header_bytes({'a': entry(stride=[1], name={'b': [None]})})
        self.check(header + DATA[:4])


if __name__ == '__main__':
    unittest.main()
