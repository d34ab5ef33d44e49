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

"""Damaged and hostile files: num_workers=2 gives what the serial load gives."""

import contextlib
import pickle
import pickletools
import random
import resource
import struct
import unittest
from collections import OrderedDict
from unittest import mock

import numpy as np
import paddle
from num_workers_case import (
    LARGE_BYTES,
    NumWorkersCase,
    binbytes,
    frame,
    outcome,
    small_thresholds,
    stream,
)
from paddle.framework import io_utils
from parameterized import parameterized

SEED = 20261129
DATA = bytes(range(256)) * 2
BIG = binbytes(DATA)
called = []


def mark(*args):
    """What a hostile file calls; harmless, but seen."""
    called.append(args)
    return args


class Hostile:
    def __init__(self, *args):
        self.args = args

    def __reduce__(self):
        return mark, self.args


class ReadsPayload:
    """Raises while it is unpickled if its payload is not complete."""

    def __init__(self, data):
        self.data = data

    def __reduce__(self):
        return read_payload, (self.data,)


def read_payload(data):
    if bytes(data) != DATA:
        raise ValueError(f'hash {hash(bytes(data))}')
    return len(data)


@contextlib.contextmanager
def little_memory():
    """A mutated memo index asks for 64 GiB; let it have 1."""
    with open('/proc/self/statm') as f:
        used_bytes = int(f.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (1 << 30), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def sample_arrays():
    return {
        'w': np.arange(LARGE_BYTES // 8, dtype='f8'),
        'b': np.ones(3, 'f4'),
        'v': np.full((2, LARGE_BYTES), 7, 'u1').T,
    }


# Streams whose frames say something else than where their opcodes end, and
# streams with a trap where the plan expects a payload. Each holds at least
# one payload that the index plans.
# SHORT_BINUNICODE; read with a shift, its letters are opcodes.
LETTERS = b'\x8c\x04N2(N'
TRAPS = {
    'honest': stream(frame(b'(N'), BIG, frame(b'\x94t.')),
    'no_frames': stream(b'(', BIG, BIG, b't.'),
    # A reader without peek() throws the rest of the frame away here.
    'frame_ends_in_argument': stream(
        b'(', frame(b'\x8c\x04N'), b'(((N', BIG, b't.'
    ),
    'frame_ends_in_long_argument': stream(
        b'(', frame(b'G\x40\x09\x21'), b'(((((N', BIG, b't.'
    ),
    'frame_ends_in_line': stream(b'(', frame(b'I1'), b'2\n' + b'N', BIG, b't.'),
    'frame_ends_in_length': stream(
        b'(', frame(b'X\x03\x00'), b'00((' + b'N', BIG, b't.'
    ),
    'frame_ends_in_payload': stream(
        b'(', frame(b'C\x05a'), b'NNNN', BIG, b't.'
    ),
    'frame_ends_before_argument': stream(
        b'(', frame(b'N\x8c'), b'K\x01', BIG, b't.'
    ),
    'frame_ends_before_long_argument': stream(
        b'(', frame(b'NG'), b'NNNNNNNN', BIG, b't.'
    ),
    'frame_ends_before_byte_argument': stream(
        b'(', frame(b'NK'), b'N', BIG, b't.'
    ),
    'nested_frames': stream(b'(', frame(frame(b'NN')), BIG, b't.'),
    'nested_frame_claims_more': stream(
        b'(', frame(frame(b'NN', 5)), b'NNN', BIG, b't.'
    ),
    'nested_frame_claims_less': stream(
        b'(', frame(frame(b'K\x01', 1)), BIG, b't.'
    ),
    'nested_frame_reaches_payload': stream(
        b'(', frame(frame(b'NN', 3)), BIG, b't.'
    ),
    'empty_frames': stream(frame(b''), b'(', frame(b''), BIG, frame(b't.')),
    'frame_of_one': stream(frame(b'('), BIG, frame(b't'), frame(b'.')),
    'frame_in_frame_length': stream(
        b'(', b'\x95\x02' + bytes(7) + b'NN', BIG, b't.'
    ),
    'next_buffer_before': stream(b'(\x97', BIG, b't.'),
    'next_buffer_in_frame': stream(b'(', frame(b'N\x97'), BIG, b't.'),
    'next_buffer_behind': stream(b'(', BIG, b'\x97t.'),
    'next_buffer_as_argument': stream(b'(K\x97', BIG, b't.'),
    'next_buffer_in_text': stream(b'(C\x02\x97a', BIG, b't.'),
    'readonly_buffer': stream(b'(', BIG, b'\x98t.'),
    'readonly_bytearray': stream(
        b'(', binbytes(DATA, b'\x96'), b'\x98t.', protocol=5
    ),
    'payload_opcode_is_one_byte_argument': stream(b'(', frame(b'K'), BIG, b'.'),
    'payload_opcode_is_memo_index': stream(
        b'(N', frame(b'q'), BIG, b'00t.'
    ),
    'payload_opcode_is_text_length': stream(
        b'(', frame(b'\x8c'), BIG, b't.'
    ),
    'payload_opcode_in_line': stream(b'(', frame(b'I'), BIG, b'\nt.'),
    'payload_opcode_in_frame_of_one': stream(b'(', frame(b'', 0), BIG, b't.'),
    'payload_in_payload': stream(b'(', binbytes(BIG + BIG), b't.'),
    'payload_in_text': stream(
        b'(X', struct.pack('<I', len(BIG)), BIG.replace(b'\x80', b'a'), b't.'
    ),
    'global_lines': stream(
        b'(', BIG, b'cbuiltins\nlen\n', BIG, b'\x85R', b't.'
    ),
    'global_line_holds_payload': stream(b'(cbuiltins\n', BIG, b'\nt.'),
    'global_without_end': stream(b'(', BIG, b'cbuiltins\nlen'),
    'second_pickle': stream(BIG, b'.') + stream(binbytes(DATA[::-1]), b'.'),
    'trailing_garbage': stream(b'(', BIG, b't.') + b'\xff' * 100,
    'proto_inside': stream(b'(', b'\x80\x04', BIG, b't.'),
    'proto_behind': stream(b'(', BIG, b'\x80\x05', BIG, b't.'),
    'stop_in_frame': stream(b'(', BIG, frame(b't.'), BIG, b't.'),
    'no_stop': stream(b'(', BIG, BIG, b't'),
    'empty_stack': stream(BIG, b'00.'),
    'mark_missing': stream(BIG, b't.'),
    'unknown_opcode': stream(b'(', BIG, b'\xff', BIG, b't.'),
    'unknown_opcode_first': stream(b'\xff(', BIG, b't.'),
    'popped': stream(BIG, b'0', binbytes(DATA[::-1]), b'.'),
    'memo_shared': stream(b'(', BIG, b'\x94h\x00h\x00t.'),
    'memo_overwritten': stream(
        b'(', BIG, b'q\x00', binbytes(DATA[::-1]), b'q\x00h\x00t.'
    ),
    'memo_missing': stream(b'(', BIG, b'h\x07t.'),
    'text_of_python_2': stream(b'(U\x02\xe9a', BIG, b't.'),
    'persistent_id': stream(b'(', BIG, b'Pname\nt.'),
    'extension': stream(b'(', BIG, b'\x82\x01t.'),
    'bytes8_too_long': stream(
        b'(', BIG, b'\x8e' + struct.pack('<Q', 2**63 - 1), BIG, b't.'
    ),
    'bytes8_negative': stream(
        b'(', BIG, b'\x8e' + struct.pack('<Q', 2**64 - 1), BIG, b't.'
    ),
    'bytearray8_too_long': stream(
        b'(', BIG, b'\x96' + struct.pack('<Q', 2**62), BIG, b't.', protocol=5
    ),
    'bytes_too_long': stream(b'(', BIG, b'B\xff\xff\xff\xff', BIG, b't.'),
    'bytes_one_too_long': stream(
        b'(', BIG, b'B' + struct.pack('<I', 515), DATA, b't.'
    ),
    'frame_too_long': stream(b'(', BIG, frame(b'NN', 2**63 - 1), BIG, b't.'),
    'frame_covers_payload': stream(b'(', frame(BIG + b'N'), BIG, b't.'),
    'frame_ends_in_planned_payload': stream(
        b'(', BIG, frame(b'N', 4), BIG, b't.'
    ),
    'text_negative': stream(b'(', BIG, b'T\xff\xff\xff\xff', BIG, b't.'),
    'long_negative': stream(b'(', BIG, b'\x8b\xff\xff\xff\xff', BIG, b't.'),
}  # fmt: skip


class TestTraps(NumWorkersCase):
    def check(self, message):
        with small_thresholds(piece_bytes=100):
            expected, ends = self.check_same_unpickled(message=message)
        self.assertEqual(len(ends), 1)
        return expected, ends[0]

    @parameterized.expand(sorted(TRAPS))
    def test_trap(self, name):
        self.write(TRAPS[name])
        self.check(name)

    @parameterized.expand(
        [
            ('honest',), ('no_frames',), ('empty_frames',), ('frame_of_one',),
            ('next_buffer_as_argument',), ('next_buffer_in_text',),
            ('readonly_buffer',), ('global_lines',), ('second_pickle',),
            ('trailing_garbage',), ('stop_in_frame',), ('memo_shared',),
            ('popped',), ('payload_in_payload',), ('text_of_python_2',),
        ]
    )  # fmt: skip
    def test_harmless_stream_is_loaded_in_parallel(self, name):
        self.write(TRAPS[name])
        expected, end = self.check(name)
        self.assertEqual(expected[0], 'value')
        self.assertIsNone(end)

    @parameterized.expand(
        [
            ('frame_ends_in_argument',), ('nested_frame_claims_more',),
            ('payload_opcode_is_one_byte_argument',),
            ('payload_opcode_is_memo_index',), ('next_buffer_in_frame',),
            ('bytes8_too_long',), ('frame_covers_payload',),
        ]
    )  # fmt: skip
    def test_trap_is_loaded_serially(self, name):
        self.write(TRAPS[name])
        if name == 'frame_covers_payload':
            self.write(TRAPS[name].replace(BIG, BIG[:-1], 1))
        _, end = self.check(name)
        self.assertIsInstance(end, Exception)

    def test_every_frame_length(self):
        parts = b'N', LETTERS, b'G' + bytes(8), b'I12\n', b'C\x02ab', b'K\x97'
        tail = b'NNNN' + BIG + b't.'
        content = b''.join(parts) + tail
        for claimed in range(len(content) + 20):
            self.write(stream(b'(', frame(content, claimed)))
            self.check(f'frame of {claimed} bytes')

    def test_every_length_of_a_nested_frame(self):
        content = LETTERS + b'N' + BIG + b't.'
        for outer in range(8, 30):
            for inner in range(24):
                inside = frame(content, inner)
                self.write(stream(b'(', frame(inside, outer)))
                self.check(f'frames of {outer} and {inner} bytes')

    def test_random_streams(self):
        rng = random.Random(SEED)
        parallel = 0
        for number in range(1500):
            self.write(random_stream(rng))
            expected, end = self.check(f'seed {SEED}, stream {number}')
            parallel += end is None and expected[0] == 'value'
        self.assertGreater(parallel, 100)


def random_stream(rng):
    """Opcodes without regard for frames, then frames put anywhere."""
    simple = [
        b'\x8c\x04N2(N', b'\x8c\x05NNNN0',
        b'N', b')', b'\x88', b']', b'}', b'K\x97', b'K\x42', b'K\x95', LETTERS,
        b'\x8c\x08' + b'B\x03(((((' + b'(', b'G' + b'N' * 8, b'I7\n', b'(0',
        b'C\x03NNN', b'M\x97\x97', b'\x94', b'X\x04\x00\x00\x00(0(0', b'2',
        b'cbuiltins\nlen\n', b'J' + b'(0N0', b'\x8a\x02NN',
    ]  # fmt: skip
    parts = []
    for _ in range(rng.randrange(1, 12)):
        if rng.random() < 0.35:
            data = rng.choice([b'N', b'(', b'\x97']) * rng.choice([1, 2, 30])
            opcode = rng.choice([b'B', b'\x8e', b'\x96'])
            parts.append(binbytes(data, opcode))
        else:
            parts.append(rng.choice(simple))
    parts += [BIG, rng.choice(simple), b't.']
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(parts))
        rest = sum(map(len, parts[at:]))
        length = rng.choice([rng.randrange(16), rng.randrange(16), rest])
        parts.insert(at, frame(b'', length))
    content = b''.join(parts)
    return stream(b'N(', content, protocol=rng.choice([4, 5]))


class TestTruncatedFiles(NumWorkersCase):
    @parameterized.expand([(4,), (5,)])
    def test_every_length_of_a_small_file(self, protocol):
        data = stream(
            frame(b'}\x94(\x8c\x01a'),
            binbytes(DATA, b'\x96' if protocol == 5 else b'B'),
            b'\x8c\x01b', binbytes(DATA[:40], b'\x8e'), frame(b'u.'),
            protocol=protocol,
        )  # fmt: skip
        with small_thresholds(piece_bytes=100):
            for length in range(len(data) + 1):
                self.write(data[:length])
                expected, _ = self.check_same_unpickled(message=length)
        self.assertEqual(expected[0], 'value')

    @parameterized.expand([(4,), (5,)])
    def test_borders_of_a_file_with_arrays(self, protocol):
        data = pickle.dumps(sample_arrays(), protocol)
        lengths = {
            position + shift
            for _, _, position in pickletools.genops(data)
            for shift in (-1, 0, 1, 2)
        }
        with small_thresholds():
            for length in sorted(lengths):
                self.write(data[: max(0, length)])
                self.check_same_unpickled(message=length)

    def test_paddle_load_says_the_same(self):
        paddle.save(sample_arrays(), self.path, protocol=4)
        with open(self.path, 'rb') as f:
            data = f.read()
        for length in 0, 1, 2, 11, 300, len(data) // 2, len(data) - 1:
            self.write(data[:length])
            expected = outcome(paddle.load, self.path)
            with small_thresholds():
                found = outcome(paddle.load, self.path, num_workers=2)
            self.assertEqual(expected[0], 'raises', length)
            self.assertEqual(found, expected, length)


OPCODES = [ord(opcode.code) for opcode in pickletools.opcodes]


def mutate(rng, data, at):
    kind = rng.random()
    if kind < 0.4:
        data[at] = rng.choice(OPCODES)
    elif kind < 0.6:
        data[at] ^= 1 << rng.randrange(8)
    elif kind < 0.8:
        data[at] = (data[at] + rng.choice([-1, 1])) % 256
    elif kind < 0.9:
        del data[at]
    else:
        data.insert(at, rng.choice(OPCODES))


def sample_objects():
    """No arrays: NumPy crashes over some mutated states, serially too."""
    shared = bytes(LARGE_BYTES)
    return OrderedDict(
        w=[shared, 1.5, 'text', (1, None, True)],
        b={'again': shared, 'n': 2**70, 'set': {1, 2}},
        v=bytearray(b'v' * LARGE_BYTES),
        c=complex(1, 2),
    )


class TestMutatedFiles(NumWorkersCase):
    def bytes_to_mutate(self, data):
        """The places outside the payloads."""
        places, last = [], 0
        for opcode, argument, position in pickletools.genops(data):
            places.extend(range(last, position + 1))
            last = position + 1
            if opcode.name in ('BINBYTES', 'BINBYTES8', 'BYTEARRAY8'):
                places.extend(range(last, last + 8))
                last += len(argument)
        return places

    @parameterized.expand([(4, 0), (5, 1)])
    def test_random_mutations(self, protocol, shift):
        seed = SEED + shift
        rng = random.Random(seed)
        whole = pickle.dumps(sample_objects(), protocol)
        places = self.bytes_to_mutate(whole)
        values = parallel = 0
        with little_memory(), small_thresholds():
            for number in range(1000):
                data = bytearray(whole)
                mutate(rng, data, rng.choice(places))
                self.write(data)
                expected, ends = self.check_same_unpickled(
                    message=f'seed {seed}, mutation {number}'
                )
                values += expected[0] == 'value'
                parallel += ends == [None]
        self.assertGreater(values, 20)
        self.assertGreater(parallel, 20)


class TestHostileFiles(NumWorkersCase):
    def setUp(self):
        super().setUp()
        called.clear()
        self.addCleanup(called.clear)

    def calls(self, num_workers):
        called.clear()
        found = outcome(self.unpickle, num_workers)
        return found, set(called)

    @parameterized.expand([(4,), (5,)])
    def test_calls_are_made_in_both_or_neither(self, protocol):
        data = pickle.dumps(
            [Hostile('first'), bytes(LARGE_BYTES), Hostile('second')], protocol
        )
        middle = data.index(bytes(9)) + 9
        made = {}
        with small_thresholds():
            for length in 20, middle, len(data) - 2, len(data):
                self.write(data[:length])
                made[length] = self.calls(1)
                self.assertEqual(self.calls(2), made[length], length)
        both = {('first',), ('second',)}
        self.assertEqual(made[20][1], set())
        self.assertEqual(made[middle][1], {('first',)})
        self.assertEqual(made[len(data)][1], both)

    def test_exception_of_a_call(self):
        value = [ReadsPayload(DATA), bytes(LARGE_BYTES), ReadsPayload(b'other')]
        self.dump(value)
        with small_thresholds():
            expected, ends = self.check_same_unpickled()
        self.assertEqual(expected[:2], ('raises', ValueError))
        self.assertIsInstance(ends[0], ValueError)

    def test_nothing_beyond_the_file_is_allocated(self):
        asked = []
        new_target = io_utils._new_target

        def recorded(payload):
            asked.append(payload)
            return new_target(payload)

        for name, data in TRAPS.items():
            self.write(data)
            asked.clear()
            with (
                small_thresholds(),
                mock.patch.object(io_utils, '_new_target', recorded),
            ):
                outcome(self.unpickle, 2)
            total = sum(payload.length_bytes for payload in asked)
            self.assertLessEqual(total, len(data), name)
            for payload in asked:
                self.assertLessEqual(payload.end, len(data), name)


if __name__ == '__main__':
    unittest.main()
