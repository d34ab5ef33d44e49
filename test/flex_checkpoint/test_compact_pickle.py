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

import io
import itertools
import os
import pickle
import random
import resource
import tempfile
import unittest
from unittest import mock

import numpy as np
from paddle.distributed.flex_checkpoint.dcp import (
    compact_pickle,
    distcp_reader,
)
from paddle.distributed.flex_checkpoint.dcp.compact_pickle import (
    TOKEN,
    CountedFile,
    read_compact,
)
from parameterized import parameterized

SEED = 20261129
# What lies out of frames has this size at least.
PAYLOAD_BYTES = 65536
# What random bytes seldom are: opcodes that frames, payloads, tokens and the
# objects of an array are made of.
OPCODES = b'\x95\x97\x98\x94\x96\x8e\x8cBCQ0.(2JKMhjtRbu}s\x85\x87'
TOKEN_PUSH = b'C' + bytes([len(TOKEN)]) + TOKEN
TOKEN_OPCODES = TOKEN_PUSH + b'Q'


def frame(content):
    return b'\x95' + len(content).to_bytes(8, 'little') + content


def payload(length=PAYLOAD_BYTES):
    return b'B' + length.to_bytes(4, 'little') + bytes(length)


def pieces(data):
    """Frames and payloads of a stream, as (is_payload, bytes)."""
    found, at = [], 2
    while at < len(data):
        size = 8 if data[at] == 0x95 else 4
        end = at + 1 + size
        end += int.from_bytes(data[at + 1 : end], 'little')
        found.append((size == 4, data[at:end]))
        at = end
    return found


def summary(value, depth=0):
    """All that a scan tells, to be compared; objects of others by type."""
    if depth > 5:  # damage makes lists that hold themselves
        return type(value)
    if type(value) is dict:
        value = list(value.items())
    elif type(value) is distcp_reader._Array:
        value = [getattr(value, name, None) for name in value.__slots__]
    elif type(value) is distcp_reader._Dtype:
        value = [value.code, value.item_bytes]
    if isinstance(value, (tuple, list)):
        return [summary(inner, depth + 1) for inner in value]
    if isinstance(value, (bytes, bytearray, str, int, float)):
        return type(value), value
    return type(value)


def bound_memory(test):
    """A memo index that is damaged makes the unpickler ask for gigabytes."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open('/proc/self/statm') as f:
        used_bytes = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + 2**28, limits[1]))
    test.addCleanup(resource.setrlimit, resource.RLIMIT_AS, limits)


class CompactTest(unittest.TestCase):
    def setUp(self):
        bound_memory(self)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, '0_0.distcp')

    def write(self, data):
        with open(self.path, 'wb') as f:
            f.write(data)

    def walk(self, walk):
        with open(self.path, 'rb') as f:
            return walk(CountedFile(f.fileno()))

    def by_index(self):
        """The way that asks for every opcode; None where it refuses."""
        try:
            return self.walk(distcp_reader._walk)
        except Exception:
            return None

    def check_never_differs(self, data, message=None):
        """Whether the compact way takes a stream, and as the other does."""
        self.write(data)
        found = self.walk(distcp_reader._walk_compact)
        if found is not None:
            expected = self.by_index()
            self.assertEqual(summary(found), summary(expected), message)
        return found is not None

    def check_declined(self, data):
        self.write(data)
        self.assertIsNone(self.walk(distcp_reader._walk_compact))

    def check_refused(self, data):
        self.check_declined(data)
        self.assertIsNone(self.by_index(), 'the stream is no bad one')


class TestWhatPicklersWrite(CompactTest):
    @parameterized.expand([(4,), (5,)])
    def test_is_read_compactly(self, protocol):
        arrays = {
            'scalar': np.array(2.5),
            'empty': np.zeros((0, 5), 'f4'),
            'small': np.ones(10000, 'f4'),
            'large': np.ones((128, 129), 'f4'),
            'fortran': np.asfortranarray(np.ones((200, 300), 'f2')),
            **{f'several frames {i}': np.ones(16000, 'f4') for i in range(9)},
            'k' * 200: np.ones(PAYLOAD_BYTES, 'u1'),
            'last': np.ones(3, 'i8'),
        }
        arrays['again'] = arrays['large']
        self.assertTrue(
            self.check_never_differs(pickle.dumps(arrays, protocol))
        )
        self.assertEqual(
            distcp_reader.scan_tensor_shapes(self.path),
            {key: array.shape for key, array in arrays.items()},
        )

    def test_one_read_for_each_tensor(self):
        num_tensors = 300
        arrays = {
            f'layer_{i}.weight': np.zeros(PAYLOAD_BYTES, 'u1')
            for i in range(num_tensors)
        }
        self.write(pickle.dumps(arrays, 4))
        with (
            mock.patch.object(os, 'pread', wraps=os.pread) as pread,
            mock.patch.object(
                distcp_reader, '_index_payloads', side_effect=AssertionError
            ),
        ):
            distcp_reader.scan_tensor_shapes(self.path)
        self.assertLess(pread.call_count, num_tensors + 5)

    @parameterized.expand([(2,), (3,)])
    def test_other_protocols_are_declined(self, protocol):
        self.check_declined(
            pickle.dumps({'a': np.ones(PAYLOAD_BYTES, 'u1')}, protocol)
        )
        self.assertIn('a', self.by_index())

    def test_more_than_the_limit_in_frames(self):
        data = pickle.dumps({f'{i}': np.ones(9000, 'u1') for i in range(20)}, 4)
        self.assertTrue(self.check_never_differs(data))
        with mock.patch.object(compact_pickle, '_MAX_COMPACT_BYTES', 99999):
            self.check_declined(data)
            self.assertEqual(
                len(distcp_reader.scan_tensor_shapes(self.path)), 20
            )

    @parameterized.expand([('token', TOKEN), ('frame', b'\x95' + bytes(9))])
    def test_tensor_with_bytes_that_mean_something(self, _, data):
        arrays = {
            'a': np.frombuffer(data, 'u1'),
            'b': np.zeros(PAYLOAD_BYTES, 'u1'),
        }
        self.check_declined(pickle.dumps(arrays, 4))
        self.assertEqual(
            distcp_reader.scan_tensor_shapes(self.path),
            {'a': (len(data),), 'b': (PAYLOAD_BYTES,)},
        )

    def test_truncated_anywhere(self):
        data = pickle.dumps(
            {key: np.zeros(PAYLOAD_BYTES, 'u1') for key in 'ab'}, 4
        )
        frames = [piece for is_payload, piece in pieces(data) if not is_payload]
        first, last = len(frames[0]) + 2, len(data) - len(frames[-1])
        for length in (
            *range(first + 20),
            first + PAYLOAD_BYTES,
            *range(last - 20, len(data)),
        ):
            self.write(data[:length])
            with self.assertRaises(distcp_reader.DistcpFormatError):
                distcp_reader.scan_tensor_shapes(self.path)


class TestHostileStreams(CompactTest):
    """Streams that only look like frames with payloads between them."""

    def setUp(self):
        super().setUp()
        data = pickle.dumps({'a': np.zeros(PAYLOAD_BYTES, 'u1')}, 4)
        (_, before), (_, self.payload), (_, after) = pieces(data)
        self.before, self.after = before[9:], after[9:]

    def stream(self, *contents, start=b'\x80\x04'):
        """Frames, with a payload behind each but the last one."""
        return start + self.payload.join(map(frame, contents))

    def test_the_pieces_are_right(self):
        self.assertTrue(
            self.check_never_differs(self.stream(self.before, self.after))
        )

    def test_payload_that_is_an_argument(self):
        # The token is an argument too, and another object the data.
        swallows = self.before + b'C' + bytes([len(TOKEN_OPCODES)])
        own = b'0C' + bytes([200]) + bytes(200) + self.after
        before = swallows.replace(b'J\0\0\1\0\x85', b'K\xc8\x85')
        self.assertNotEqual(before, swallows)
        self.check_refused(self.stream(before, own))
        # As before, but the file brings a token of its own, or another id.
        for own in (TOKEN_OPCODES, b'K\x01Q'):
            self.check_refused(self.stream(swallows, b'0' + own + self.after))

    def test_text_in_the_place_of_a_payload(self):
        for header in (
            b'X' + PAYLOAD_BYTES.to_bytes(4, 'little'),
            b'\x8d' + PAYLOAD_BYTES.to_bytes(8, 'little'),
        ):
            self.payload = header + bytes(PAYLOAD_BYTES)
            self.check_declined(self.stream(self.before, self.after))
            with self.assertRaisesRegex(ValueError, 'received str'):
                distcp_reader.scan_tensor_shapes(self.path)

    def test_token_of_the_file(self):
        for own in (
            TOKEN_OPCODES,
            b'B' + len(TOKEN).to_bytes(4, 'little') + TOKEN + b'Q',
            TOKEN_OPCODES + b'0',
        ):
            self.check_refused(self.stream(self.before + own, self.after))
            self.check_refused(
                self.stream(self.before, own + self.after, self.after)
            )

    def test_other_ways_to_an_object_from_outside(self):
        for opcodes in (b'\x97', b'K\x01Q', b'C\x01aQ', b'P1\n', b'}Q'):
            self.check_refused(self.stream(self.before + opcodes, self.after))

    @parameterized.expand(
        [
            (opcode.decode('latin1').encode().hex(), opcode)
            for opcode in (
                b'K', b'M', b'J', b'G', b'C', b'\x8c', b'B', b'\x8e', b'X',
                b'\x96', b'h', b'j', b'q', b'r', b'\x8a', b'\x8b', b'c', b'I',
                b'\x82', b'\x84', b'U', b'T', b'S', b'V', b'P',
            )
        ]
    )  # fmt: skip
    def test_argument_past_the_end_of_a_frame(self, _, opcode):
        for known in range(9):
            tail = opcode + b'\x01\0\0\0\0\0\0\0\0'[:known]
            for content in (self.before + tail, self.before[:-1] + tail):
                self.check_never_differs(self.stream(content, self.after))
                self.check_never_differs(
                    b'\x80\x04'
                    + frame(content)
                    + frame(self.before)
                    + self.payload
                    + frame(self.after)
                )

    def test_frame_ends_that_are_no_opcode(self):
        # In a file, frames are cut anywhere; what was cut off may be lost.
        whole = self.before + b'J\1\0\0\x000'
        for cut in range(1, 5):
            data = (
                b'\x80\x04'
                + frame(whole[: -1 - cut])
                + frame(whole[-1 - cut :])
                + self.payload
                + frame(self.after)
            )
            self.check_refused(data)

    def test_frame_within_a_frame(self):
        for length in (3, 40, 100, 65536, 2**40):
            inner = b'\x95' + length.to_bytes(8, 'little')
            self.check_declined(self.stream(inner + self.before, self.after))
            self.check_declined(self.stream(self.before, inner + self.after))

    def test_stop_before_the_end(self):
        for at in (b'.', b'0.', b'K\x01.'):
            self.check_declined(self.stream(self.before, at + self.after))
        self.check_declined(self.stream(self.before, self.after + b'K\x01.'))
        self.check_declined(self.stream(self.before, self.after + b'a'))
        self.check_refused(self.stream(self.before + b'.', self.after))

    def test_stop_that_is_an_argument(self):
        self.check_refused(self.stream(self.before, self.after[:-1] + b'K.'))

    def test_payload_at_the_end(self):
        self.check_refused(self.stream(self.before, self.after, b'')[:-9])
        self.check_refused(self.stream(self.before, b''))

    def test_lengths_beyond_the_file(self):
        data = self.stream(self.before, self.after)
        at = data.index(b'B' + PAYLOAD_BYTES.to_bytes(4, 'little'))
        for length in (len(data) - at - 5, len(data) - at - 4, 2**32 - 1):
            self.check_refused(
                data[: at + 1] + length.to_bytes(4, 'little') + data[at + 5 :]
            )
        for length in (len(data) - 10, len(data), 2**63, 2**64 - 1):
            self.check_refused(
                data[:3] + length.to_bytes(8, 'little') + data[11:]
            )

    def test_memo_index_of_any_size(self):
        for index in (300, 2**16):
            put = b'r' + index.to_bytes(4, 'little')
            get = b'j' + index.to_bytes(4, 'little')
            self.assertTrue(
                self.check_never_differs(
                    self.stream(self.before, put + b'0' + get + self.after)
                )
            )


class TestDamage(CompactTest):
    """Whatever is changed, no stream is taken for another one."""

    def changed(self, generator, data):
        parts = pieces(data)
        for _ in range(generator.choice((1, 1, 1, 2, 3))):
            frames = [i for i, part in enumerate(parts) if not part[0]]
            index = generator.choice(frames)
            part = bytearray(parts[index][1])
            at = generator.randrange(len(part))
            some = bytes(
                generator.choice(
                    (generator.choice(OPCODES), generator.randrange(256))
                )
                for _ in range(generator.choice((1, 1, 2, 4)))
            )
            kind = generator.randrange(4)
            if kind == 0:
                part[at : at + len(some)] = some
            elif kind == 1:
                part[at:at] = some
            elif kind == 2:
                del part[at : at + len(some)]
            else:
                at = 9 + generator.randrange(max(1, len(part) - 9))
                part[at:at] = generator.choice(
                    (TOKEN_OPCODES, TOKEN_PUSH, frame(some), b'C\x0b', b'J\0')
                )
            if generator.random() < 0.7 and len(part) > 9:
                part[1:9] = (len(part) - 9).to_bytes(8, 'little')
            parts[index] = (False, bytes(part))
        return data[:2] + b''.join(part for _, part in parts)

    @parameterized.expand([(4,), (5,)])
    def test_any_change(self, protocol):
        arrays = {
            'a': np.zeros(PAYLOAD_BYTES, 'u1'),
            'b': np.array([1, 2]),
            'c': np.zeros((256, 64), 'f4'),
            'd': np.zeros(0),
        }
        data = pickle.dumps(arrays, protocol)
        generator = random.Random(SEED)
        taken = 0
        for case in range(1500):
            changed = self.changed(generator, data)
            message = f'seed {SEED}, protocol {protocol}, case {case}'
            taken += self.check_never_differs(changed, message)
        self.assertGreater(taken, 20, 'no change was harmless')

    def test_small_frames(self):
        """Frames cut at any opcodes and elsewhere, and short ones."""
        data = pickle.dumps({'a': np.zeros(PAYLOAD_BYTES, 'u1')}, 4)
        (_, before), bulk, (_, after) = pieces(data)
        generator = random.Random(SEED)
        taken = 0
        for case in range(500):
            parts = []
            for content in (before[9:], after[9:]):
                cuts = sorted(
                    generator.randrange(len(content) + 1) for _ in range(2)
                )
                ends = [0, *cuts, len(content)]
                parts += [
                    frame(content[start:end])
                    for start, end in itertools.pairwise(ends)
                ]
                parts.append(bulk[1])
            changed = data[:2] + b''.join(parts[:-1])
            message = f'seed {SEED}, case {case}'
            taken += self.check_never_differs(changed, message)
        self.assertGreater(taken, 20, 'no cut was harmless')


class TestStream(CompactTest):
    def test_what_it_looks_like(self):
        content = b']\x94('
        data = b'\x80\x04' + frame(content) + payload() + frame(b'e.')
        self.write(data)
        with open(self.path, 'rb') as f:
            file = CountedFile(f.fileno())
            stream, payloads = read_compact(file)
        place, end = payloads
        self.assertEqual(place, (14, 19, PAYLOAD_BYTES, False))
        self.assertIsNone(end)
        self.assertEqual(stream.count(TOKEN), 2)
        self.assertLess(file.bytes_read, 400)

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, token):
                return token

        self.assertEqual(Unpickler(io.BytesIO(stream)).load(), [TOKEN])


if __name__ == '__main__':
    unittest.main()
