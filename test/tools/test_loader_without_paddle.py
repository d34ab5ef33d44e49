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

"""The loader's index, plan and stream, which need no Paddle."""

import io
import os
import pickle
import pickletools
import runpy
import struct
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from parameterized import parameterized

SOURCE = Path(__file__).parents[2] / 'python/paddle/framework/io_utils.py'


def load_without_paddle():
    """The module's names; an import of Paddle in it fails."""
    with mock.patch.dict(sys.modules, paddle=None):
        return SimpleNamespace(**runpy.run_path(str(SOURCE)))


io_utils = load_without_paddle()
BIG = bytes(range(256)) * 300


def reader(data):
    return lambda offset, length: data[offset : offset + length]


def index(data, *args):
    return io_utils._index_payloads(reader(data), len(data), *args)


def places(data, *args):
    return [tuple(payload) for payload in index(data, *args)]


def binbytes(data, opcode=b'B'):
    width = '<I' if opcode == b'B' else '<Q'
    return opcode + struct.pack(width, len(data)) + data


def frame(content):
    return b'\x95' + struct.pack('<Q', len(content)) + content


# An argument for each kind of opcode that the index walks over. Every letter
# of them would itself be an unknown opcode or end the walk.
ARGUMENTS = {
    'uint1': b'\xff', 'uint2': b'\xff' * 2, 'int4': b'\xff' * 4,
    'uint4': b'\xff' * 4, 'uint8': bytes(8), 'float8': b'\xff' * 8,
    'stringnl': b'\xff.\n', 'stringnl_noescape': b'\xff.\n',
    'unicodestringnl': b'\xff.\n', 'decimalnl_short': b'\xff.\n',
    'decimalnl_long': b'\xff.\n', 'floatnl': b'\xff.\n',
    'stringnl_noescape_pair': b'\xff.\n\xff.\n',
    'string1': b'\x02\xff.', 'bytes1': b'\x02\xff.', 'long1': b'\x02\xff.',
    'unicodestring1': b'\x02\xff.',
    'string4': b'\x02\0\0\0\xff.', 'bytes4': b'\x02\0\0\0\xff.',
    'long4': b'\x02\0\0\0\xff.', 'unicodestring4': b'\x02\0\0\0\xff.',
    'unicodestring8': b'\x02\0\0\0\0\0\0\0\xff.',
    'bytes8': b'\x02\0\0\0\0\0\0\0\xff.',
    'bytearray8': b'\x02\0\0\0\0\0\0\0\xff.',
}  # fmt: skip
ENDS = 'STOP', 'PROTO', 'NEXT_BUFFER', 'READONLY_BUFFER'


class TestIndex(unittest.TestCase):
    @parameterized.expand(
        [(o.name, o) for o in pickletools.opcodes if o.name not in ENDS]
    )
    def test_walks_over_opcode(self, name, opcode):
        argument = b'' if opcode.arg is None else ARGUMENTS[opcode.arg.name]
        before = b'\x80\x04' + opcode.code.encode('latin1') + argument
        data = before + binbytes(BIG) + b'.'
        expected = [(len(before), len(before) + 5, len(BIG), False)]
        self.assertEqual(places(data), expected)

    @parameterized.expand([(name,) for name in ENDS] + [('unknown',)])
    def test_ends_at_opcode(self, name):
        codes = {o.name: o.code.encode('latin1') for o in pickletools.opcodes}
        code = codes.get(name, b'\xff')
        payload = binbytes(BIG)
        data = b'\x80\x04' + payload + code + b'\x04' + payload + b'.'
        self.assertEqual([p[0] for p in places(data)], [2])

    @parameterized.expand([('B', 5), ('\x8e', 9), ('\x96', 9)])
    def test_kinds_of_payload(self, opcode, header_bytes):
        data = b'\x80\x05' + binbytes(BIG, opcode.encode('latin1')) + b'.'
        start = 2 + header_bytes
        expected = [(2, start, len(BIG), opcode == '\x96')]
        self.assertEqual(places(data), expected)
        self.assertEqual(index(data)[0].end, start + len(BIG))

    def test_frames_are_stepped_over(self):
        inside = binbytes(BIG)
        data = b'\x80\x04' + frame(inside) + frame(b'') + inside + b'.'
        start = 2 + 9 + len(inside) + 9
        self.assertEqual([p[0] for p in places(data)], [start])

    def test_stream_without_proto(self):
        self.assertEqual([p[0] for p in places(b'N' + binbytes(BIG))], [1])
        self.assertEqual(places(b''), [])

    def test_least_payload(self):
        data = b''.join(binbytes(bytes(n)) for n in (65535, 65536, 99)) + b'.'
        self.assertEqual([p[2] for p in places(data)], [65536])
        self.assertEqual([p[2] for p in places(data, 65537)], [])
        self.assertEqual([p[2] for p in places(data, 99)], [65535, 65536, 99])

    @parameterized.expand([(n,) for n in range(500, 520)])
    def test_opcodes_across_windows(self, filling):
        """The window ends before, in and behind an opcode and its length."""
        before = b'\x80\x04' + b'N' * (filling - 2)
        data = before + binbytes(BIG, b'\x8e') + b'N' * filling + binbytes(BIG)
        second = filling + 9 + len(BIG) + filling
        self.assertEqual([p[0] for p in places(data)], [filling, second])

    @parameterized.expand([(b'B', '<I'), (b'\x8e', '<Q'), (b'\x96', '<Q'),
                           (b'X', '<I'), (b'\x95', '<Q'), (b'\x8b', '<I'),
                           (b'\x8d', '<Q'), (b'T', '<I')])  # fmt: skip
    def test_length_beyond_the_file(self, opcode, width):
        most = 2 ** (8 * struct.calcsize(width)) - 1
        for length in 4, most // 2, most:
            data = b'\x80\x04N' + opcode + struct.pack(width, length) + b'abc'
            with self.assertRaisesRegex(
                io_utils._StreamUnsuited, f'{opcode[0]:#04x} at offset 3'
            ):
                index(data)
            index(data[:4] + struct.pack(width, 3) + b'abc')  # control

    def test_length_cut_by_the_end(self):
        for length in range(9):
            data = b'\x80\x04' + binbytes(BIG, b'\x8e')[: 1 + length]
            if length < 8:
                with self.assertRaises(io_utils._StreamUnsuited):
                    index(data)

    def test_budget_of_opcodes_without_payload(self):
        payload = binbytes(BIG)
        data = b'N' * 7 + payload + frame(b'') * 9 + b'N' * 8 + payload
        self.assertEqual(len(places(data, 1, 18)), 2)
        self.assertEqual(len(places(data, 1, 17)), 1)
        self.assertEqual(len(places(data, 1, 8)), 1)
        self.assertEqual(len(places(data, 1, 7)), 0)
        self.assertEqual(len(places(data, 1, None)), 2)

    def test_line_that_does_not_end(self):
        data = b'c' + b'm' * 2000 + b'\nn\n' + binbytes(BIG)
        self.assertEqual(places(data), [])

    @parameterized.expand([(4,), (5,)])
    def test_payloads_of_real_pickles(self, protocol):
        value = [BIG, bytearray(BIG), {'a': (BIG[::-1], 1.5, 'text')}, BIG]
        data = pickle.dumps(value, protocol)
        names = 'BINBYTES', 'BYTEARRAY8'
        expected = [
            position
            for opcode, argument, position in pickletools.genops(data)
            if opcode.name in names and len(argument) == len(BIG)
        ]
        self.assertEqual([p[0] for p in places(data)], expected)
        self.assertEqual(len(expected), 3)
        for payload in index(data):
            held = data[payload.offset : payload.end]
            self.assertIn(held, (BIG, BIG[::-1]))


def payload_lists():
    """Payloads with gaps between them, in file order."""
    pairs = st.tuples(st.integers(0, 9000), st.integers(1, 3000))
    return st.lists(pairs, min_size=1, max_size=60).map(payloads_from)


def payloads_from(pairs):
    payloads, at = [], 0
    for gap_bytes, length_bytes in pairs:
        start = at + 1 + gap_bytes
        payloads.append(io_utils._Payload(at, start, length_bytes, False))
        at = start + length_bytes
    return payloads


class TestPlan(unittest.TestCase):
    @settings(max_examples=300, derandomize=True, deadline=None)
    @given(payload_lists(), st.integers(1, 5000))
    def test_every_byte_is_read_once_and_in_order(self, payloads, piece_bytes):
        pieces, last_pieces = io_utils._plan_pieces(payloads, piece_bytes)
        parts = [part for piece in pieces for part in piece]
        at = 0
        for index, payload in enumerate(payloads):
            start = 0
            while start < payload.length_bytes:
                part = parts[at]
                at += 1
                self.assertEqual(part.payload_index, index)
                self.assertEqual(part.start, start)
                self.assertEqual(part.file_offset, payload.offset + start)
                self.assertGreater(part.length_bytes, 0)
                start += part.length_bytes
            self.assertEqual(start, payload.length_bytes)
            holders = [
                number
                for number, piece in enumerate(pieces)
                if any(part.payload_index == index for part in piece)
            ]
            self.assertEqual(last_pieces[index], holders[-1])
        self.assertEqual(at, len(parts))

    @settings(max_examples=300, derandomize=True, deadline=None)
    @given(payload_lists(), st.integers(1, 5000), st.integers(2, 12))
    def test_bounds_of_a_piece(self, payloads, piece_bytes, most_views):
        names = io_utils._plan_pieces.__globals__
        with mock.patch.dict(names, _MAX_VIEWS=most_views):
            pieces, _ = io_utils._plan_pieces(payloads, piece_bytes)
        for piece in pieces:
            self.assertTrue(piece)
            total_bytes = sum(part.length_bytes for part in piece)
            self.assertLessEqual(total_bytes, piece_bytes)
            self.assertLessEqual(2 * len(piece) - 1, most_views)
            for one, two in zip(piece, piece[1:], strict=False):
                gap_bytes = two.file_offset - one.file_offset - one.length_bytes
                self.assertLessEqual(gap_bytes, names['_MAX_GAP_BYTES'])

    @settings(max_examples=100, derandomize=True, deadline=None)
    @given(payload_lists(), st.integers(1, 5000))
    def test_pieces_are_no_more_than_needed(self, payloads, piece_bytes):
        """A piece ends when it is full or where the next part is far."""
        pieces, _ = io_utils._plan_pieces(payloads, piece_bytes)
        for one, two in zip(pieces, pieces[1:], strict=False):
            end = one[-1].file_offset + one[-1].length_bytes
            full = sum(part.length_bytes for part in one) == piece_bytes
            far = two[0].file_offset - end > io_utils._MAX_GAP_BYTES
            self.assertTrue(full or far)

    def test_empty_payloads(self):
        empty = io_utils._Payload(0, 5, 0, False)
        full = io_utils._Payload(5, 10, 7, False)
        pieces, last_pieces = io_utils._plan_pieces([empty, full, empty], 4)
        self.assertEqual([len(piece) for piece in pieces], [1, 1])
        self.assertEqual(last_pieces, [-1, 1, 1])

    @parameterized.expand(
        [
            (8 << 20, 4, 2 << 20), (8 << 20, 3, 2796203), (8 << 20, 8, 2 << 20),
            (1 << 40, 8, 16 << 20), (100, 2, 2 << 20),
            (8 << 20, 10**9, 2 << 20),
        ]
    )  # fmt: skip
    def test_size_of_a_piece(self, total_bytes, num_workers, expected):
        payloads = [io_utils._Payload(0, 5, total_bytes // 2, False)] * 2
        found = io_utils._piece_bytes(payloads, num_workers)
        self.assertEqual(found, expected)


class TestArgument(unittest.TestCase):
    @parameterized.expand([(None, 1), (0, 1), (1, 1), (2, 2), (1000, 1000)])
    def test_count(self, value, expected):
        found = io_utils._resolve_num_workers(value)
        self.assertEqual(found, expected)
        self.assertIs(type(found), int)

    @parameterized.expand([(True,), (2.0,), ('2',), ([2],), (b'2',)])
    def test_wrong_type(self, value):
        with self.assertRaisesRegex(TypeError, type(value).__name__):
            io_utils._resolve_num_workers(value)

    def test_negative(self):
        with self.assertRaisesRegex(ValueError, '-3'):
            io_utils._resolve_num_workers(-3)


class TestStream(unittest.TestCase):
    def stream(self, data, payloads=None):
        payloads = index(data, 1) if payloads is None else payloads
        return io_utils._PayloadStream(reader(data), len(data), payloads)

    def test_bytes_between_payloads(self):
        one, two = binbytes(b'one'), binbytes(b'two', b'\x96')
        stream = self.stream(b'NN' + one + b'NNN' + two + b'.')
        self.assertEqual(stream.read(2), b'NN')
        self.assertEqual(stream.read(1), b'\x97')
        self.assertEqual(stream.next_payload().length_bytes, 3)
        self.assertEqual(stream.read(1), b'N')
        self.assertEqual(stream.read(2), b'NN')
        self.assertEqual(stream.read(1), b'\x97')
        self.assertTrue(stream.next_payload().is_bytearray)
        self.assertEqual(stream.read(1), b'.')
        self.assertEqual(stream.read(1), b'')

    def test_reads_that_the_plan_does_not_know(self):
        data = b'NN' + binbytes(b'one') + b'.'
        steps = {
            'across': lambda s: s.read(3),
            'across_in_parts': lambda s: (s.read(1), s.read(2)),
            'into': lambda s: s.readinto(bytearray(3)),
            'line': lambda s: s.readline(),
            'early': lambda s: s.next_payload(),
            'early_by_one': lambda s: (s.read(1), s.next_payload()),
            'argument': lambda s: (s.read(2), s.read(1), s.read(1)),
            'twice': lambda s: (
                s.read(2), s.read(1), s.next_payload(), s.next_payload(),
            ),
        }  # fmt: skip
        for name, step in steps.items():
            with (
                self.subTest(name),
                self.assertRaises(io_utils._StreamUnsuited),
            ):
                step(self.stream(data))

    @parameterized.expand([(0,), (1,), (511,), (512,), (513,), (5000,)])
    def test_lines_and_buffers(self, length):
        data = b'x' * length + b'\n' + b'rest'
        stream = self.stream(data, [])
        self.assertEqual(stream.readline(), data[: length + 1])
        buffer = bytearray(2)
        self.assertEqual(stream.readinto(buffer), 2)
        self.assertEqual(buffer, b're')
        self.assertEqual(stream.readline(), b'st')
        buffer = bytearray(3)
        self.assertEqual(stream.readinto(buffer), 0)

    @settings(max_examples=200, derandomize=True, deadline=None)
    @given(
        st.lists(st.tuples(st.sampled_from(['read', 'readinto', 'readline']),
                           st.integers(0, 1500)), max_size=30),
        st.binary(min_size=1, max_size=6000),
    )  # fmt: skip
    def test_reads_as_the_file_does(self, steps, data):
        file, stream = io.BytesIO(data), self.stream(data, [])
        for method, length in steps:
            # An opcode: the unpickler reads no argument without one.
            self.assertEqual(stream.read(1), file.read(1))
            if method == 'readinto':
                one, two = bytearray(length), bytearray(length)
                self.assertEqual(stream.readinto(one), file.readinto(two))
                self.assertEqual(one, two)
            elif method == 'read':
                self.assertEqual(stream.read(length), file.read(length))
            else:
                self.assertEqual(stream.readline(), file.readline())

    @parameterized.expand([(4,), (5,)])
    def test_unpickles(self, protocol):
        value = [BIG, 1, bytearray(BIG), ['text'] * 9000, BIG[::-1]]
        data = pickle.dumps(value, protocol)
        stream = self.stream(data, index(data))

        def buffers():
            while True:
                payload = stream.next_payload()
                kind = bytearray if payload.is_bytearray else bytes
                yield kind(data[payload.offset : payload.end])

        unpickler = pickle.Unpickler(stream, buffers=buffers())
        self.assertEqual(unpickler.load(), value)


class TestReading(unittest.TestCase):
    @parameterized.expand([(1,), (7,), (4096,), (1 << 20,)])
    def test_short_reads(self, most_bytes):
        data = bytes(range(256)) * 40

        def preadv(fd, views, offset):
            count = min(most_bytes, len(data) - offset, len(views[0]))
            views[0][:count] = data[offset : offset + count]
            return max(0, count)

        def pread(fd, length, offset):
            return data[offset : offset + min(length, most_bytes)]

        with (
            mock.patch.object(os, 'preadv', preadv),
            mock.patch.object(os, 'pread', pread),
        ):
            self.assertEqual(io_utils._read_at(3, 9, 10_000), data[9:10_009])
            self.assertEqual(io_utils._read_at(3, 9_000, 5000), data[9_000:])
            self.assertEqual(io_utils._read_at(3, len(data), 9), b'')
            buffer = bytearray(10_000)
            self.assertEqual(io_utils._readinto_at(3, 100, buffer), 10_000)
            self.assertEqual(buffer, data[100:10_100])
            views = [memoryview(bytearray(n)) for n in (3, 5000, 1, 3)]
            kept = list(views)
            self.assertEqual(io_utils._readv_at(3, views, 50), 5007)
            self.assertEqual(b''.join(kept), data[50:5057])


if __name__ == '__main__':
    unittest.main()
