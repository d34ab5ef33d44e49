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


"""Parallel loads of the running Python, with the serial load as the oracle.

Also with unpicklers that behave in other ways than docs/unpickler.md says:
what is loaded is the serial load's, with at most one warning. Needs the
standard library alone and runs on CPython 3.9 and later.
"""

import io
import os
import pickle
import random
import tempfile
import unittest
from unittest import mock

from unpickler_probe import (
    ends_of_frames_are_enforced,
    frame,
    io_utils,
    sized,
)

try:
    import numpy as np
except ImportError:
    np = None

SEED = 20261129
DATA = bytes(range(256)) * 2
BIG = sized(b'B', DATA)

# Text that makes a frame longer than what newer releases read at once.
LONG = sized(b'X', b'a' * (3 << 19)) + b'0'

# Opcodes and pieces that hostile streams are made of; the last ones lie about
# what follows them.
PIECES = (
    b'N', b'(', b'0', b'2', b't', b'\x94', b'h\0', b'K\1', b'J\1\2\3\4', b'I1\n',
    b'\x8c\1a', b'X\2\0\0\0ab', b'C\1a', b'G' + bytes(8), b'\x97', b'.',
    BIG, sized(b'\x8e', DATA), sized(b'\x96', DATA),
    b'X\2\0', b'J', b'K', b'\x8c\5', b'I1', b'G', b'C\5', b'B\2\0',
)  # fmt: skip


def honest_values():
    one = DATA * 128  # the least that picklers leave out of frames
    yield [one, 1, bytearray(one), ['text'] * 9000, one[::-1]]
    yield {'a': (one, DATA, one), 'b': 'c' * (2 << 20), 'd': one[::-1]}
    yield [list(range(1000)), {str(i): 1.5 for i in range(30000)}, one]
    if np is not None:
        yield {'w': np.arange(1 << 16), 'b': np.ones(3), 't': (one,)}


def honest_streams():
    for protocol in (4, 5):
        for value in honest_values():
            yield pickle.dumps(value, protocol)
            yield pickle._dumps(value, protocol)
    yield b'\x80\5(' + BIG + b'K\1' * 30 + BIG * 3 + b't.'
    yield b'\x80\4(' + frame(LONG + b'N') + BIG + frame(b't.')


def streams_with_payloads():
    """Honest, and such where frames say something else than the opcodes."""
    parts = {
        'plain': BIG + b't.',
        'frames': frame(b'(N') + BIG + frame(b'tN\x86.'),
        'in_argument': frame(b'\x8c\4N') + b'(((N' + BIG + b't.',
        'in_long_argument': frame(b'G\1\2\3') + b'(((((N' + BIG + b't.',
        'in_line_of_more': frame(b'NNNNI1') + b'2\nN' + BIG + b't.',
        'in_argument_of_more': frame(b'NNNNG\1\2\3')
        + b'(((((N' + BIG + b't.',
        'in_line': frame(b'I1') + b'2\nN' + BIG + b't.',
        'in_length': frame(b'X\3\0') + b'00((N' + BIG + b't.',
        'in_payload': frame(b'C\5a') + b'NNNN' + BIG + b't.',
        'before_byte_argument': frame(b'NK') + b'N' + BIG + b't.',
        'nested': frame(frame(b'NN')) + BIG + b't.',
        'nested_more': frame(frame(b'NN', 5)) + b'NNN' + BIG + b't.',
        'nested_less': frame(frame(b'K\1', 1)) + BIG + b't.',
        'reaches_payload': frame(b'NN', 3) + BIG + b't.',
        'foreign_buffer': b'\x97' + BIG + b't.',
        'foreign_buffer_in_frame': frame(b'N\x97') + BIG + b't.',
        'long_frame': frame(LONG) + b'N' + BIG + b't.',
        'in_long_frame': frame(LONG + b'X\3\0') + b'00((N' + BIG + b't.',
        'in_long_frame_line': frame(LONG + b'I1') + b'2\nN' + BIG + b't.',
        'long_frame_in_argument': frame(LONG + b'G\1\2\3')
        + b'(((((N' + BIG + b't.',
        'shifted': b'X\2\0\0\0' + BIG + b't.',
        'cut': (BIG + BIG)[:-9],
        'no_stop': BIG,
    }  # fmt: skip
    return {name: b'\x80\4(' + part for name, part in parts.items()}


def outcome(load):
    try:
        value = load()
    except Exception as error:
        return type(error), str(error)
    return repr(value) if np is None else pickle.dumps(value)


class Loads(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, 'stream')
        self.log = mock.Mock()
        for name, value in (
            ('_logger', self.log),
            ('_MIN_PARALLEL_PAYLOAD_BYTES', 256),
            ('_MIN_PARALLEL_BYTES', 256),
        ):
            patch = mock.patch.object(io_utils, name, value, create=True)
            patch.start()
            self.addCleanup(patch.stop)

    def load(self, num_workers):
        with open(self.path, 'rb') as f:
            return io_utils._load_pickle(pickle.load, self.path, f, num_workers)

    def check(self, stream):
        """Both loads; -> whether the parallel one was not dropped."""
        with open(self.path, 'wb') as f:
            f.write(stream)
        serial = outcome(lambda: self.load(1))
        self.log.reset_mock()
        parallel = outcome(lambda: self.load(2))
        note = f'seed {SEED}, {len(stream)} bytes: {stream[:2000]!r}'
        self.assertEqual(parallel, serial, note)
        self.assertLessEqual(self.log.warning.call_count, 1, note)
        return not self.log.method_calls and type(serial) is not tuple


class TestLoads(Loads):
    def test_honest(self):
        for stream in honest_streams():
            self.assertTrue(self.check(stream), stream[:200])

    def test_frames_that_lie(self):
        for name, stream in streams_with_payloads().items():
            with self.subTest(name):
                done = self.check(stream)
                if name in ('plain', 'frames'):
                    self.assertTrue(done)

    def test_truncations(self):
        stream = b'\x80\5(' + frame(b'K\1\x8c\2ab') + BIG + frame(b'I1\nt.')
        for end in (*range(2, 30), *range(len(stream) - 20, len(stream))):
            self.check(stream[:end])

    def test_random_streams(self):
        random_ = random.Random(SEED)
        done = 0
        for _ in range(400):
            pieces = random_.choices(PIECES, k=random_.randint(1, 8))
            at = random_.randrange(len(pieces))
            content = b''.join(pieces[:at])
            content = frame(content, max(0, len(content) + random_.choice(
                (0, 0, 0, 0, -1, 1, 3, 5)
            )))  # fmt: skip
            rest = b''.join(pieces[at:])
            done += self.check(b'\x80\5(' + content + rest + BIG + b't.')
        self.assertGreater(done, 20, f'seed {SEED}')

    def test_mutants(self):
        random_ = random.Random(SEED)
        streams = list(streams_with_payloads().values())
        streams = [stream for stream in streams if len(stream) < 5000]
        for _ in range(400):
            stream = bytearray(random_.choice(streams))
            for _ in range(random_.randint(1, 3)):
                at = random_.randrange(2, min(len(stream), 40))
                stream[at] = random_.choice(b'\x95\x97BXKGCN(t.\0\1\2\3\5')
            self.check(bytes(stream))


# ---- unpicklers that surprise


class Behind:
    """Hands calls on to the file, which is asked as a subclass decides."""

    def __init__(self, file):
        self.file = file

    def read(self, length):
        return self.file.read(length)

    def readinto(self, buffer):
        return self.file.readinto(buffer)

    def readline(self):
        return self.file.readline()


class AllAhead(Behind):
    """Reads more than was asked for and keeps it."""

    def __init__(self, file):
        class Raw(io.RawIOBase):
            def readable(self):
                return True

            def readinto(self, buffer):
                data = file.read(len(buffer))
                buffer[: len(data)] = data
                return len(data)

        super().__init__(io.BufferedReader(Raw()))


class OneAhead(Behind):
    """Has the next opcode before it executes one."""

    held = None

    def read(self, length):
        if self.held is None:
            self.held = self.file.read(1)
        data = self.held + self.file.read(length - 1)
        self.held = self.file.read(1)
        return data


class ByteByByte(Behind):
    def read(self, length):
        return b''.join(self.file.read(1) for _ in range(length))


class NoReadinto(Behind):
    def readinto(self, buffer):
        data = self.file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class SeeksBack(Behind):
    def read(self, length):
        self.file.seek(0, os.SEEK_CUR)
        return self.file.read(length)


class ReadsNothing(Behind):
    def read(self, length):
        self.file.read(0)
        return self.file.read(length)


def unpickler_behind(behind, base=pickle._Unpickler):
    class Unpickler(base):
        def __init__(self, file, **options):
            super().__init__(behind(file), **options)

    return Unpickler


class LooseFrames:
    """Reads in chunks, and lets go of a frame's rest as old releases do."""

    CHUNK_BYTES = 4

    def __init__(self, file):
        self.file, self.rest = file, b''

    def fetch(self, length):
        data = bytearray(self.file.read(min(length, self.CHUNK_BYTES)))
        while len(data) < length:
            chunk = bytearray(min(length - len(data), self.CHUNK_BYTES))
            count = self.file.readinto(chunk)
            data += chunk[:count]
            if not count:
                raise pickle.UnpicklingError('pickle data was truncated')
        return bytes(data)

    def load_frame(self, length):
        data = self.read(length)
        self.rest = data + self.rest

    def take(self, length):
        data, self.rest = self.rest[:length], self.rest[length:]
        return data

    def read(self, length):
        if length <= len(self.rest):
            return self.take(length)
        self.rest = b''
        return self.fetch(length)

    def readinto(self, buffer):
        data = self.take(len(buffer))
        buffer[: len(data)] = data
        with memoryview(buffer) as view:
            if len(data) < len(buffer):
                return len(data) + self.file.readinto(view[len(data) :])
        return len(data)

    def readline(self):
        end = self.rest.find(b'\n') + 1
        if end:
            return self.take(end)
        self.rest = b''
        return self.file.readline()


class LooseUnpickler(pickle._Unpickler):
    def __init__(self, file, **options):
        super().__init__(file, **options)
        self.frames = LooseFrames(file)

    def load(self):
        with mock.patch.object(pickle, '_Unframer', lambda *_: self.frames):
            return super().load()


class BuffersAhead(pickle.Unpickler):
    """Takes the first buffer before it begins."""

    def __init__(self, file, *, buffers, **options):
        buffers = iter([next(buffers), *buffers])
        super().__init__(file, buffers=buffers, **options)


class BuffersTwice(pickle.Unpickler):
    """Asks for two buffers at once."""

    def __init__(self, file, *, buffers, **options):
        def pairs():
            for value in buffers:
                next(buffers)
                yield value

        super().__init__(file, buffers=pairs(), **options)


class NoBuffers(pickle.Unpickler):
    """Does not execute NEXT_BUFFER."""

    def __init__(self, file, *, buffers, **options):
        super().__init__(file, **options)


# Whether what it asks for is still what a stream of payloads can give.
SURPRISES = {
    'Python': (pickle._Unpickler, True),
    'ByteByByte': (unpickler_behind(ByteByByte), True),
    'NoReadinto': (unpickler_behind(NoReadinto), True),
    'ReadsNothing': (unpickler_behind(ReadsNothing), True),
    'AllAhead': (unpickler_behind(AllAhead), False),
    'OneAhead': (unpickler_behind(OneAhead), False),
    'SeeksBack': (unpickler_behind(SeeksBack), False),
    'SeeksBack in C': (unpickler_behind(SeeksBack, pickle.Unpickler), False),
    'BuffersAhead': (BuffersAhead, False),
    'BuffersTwice': (BuffersTwice, False),
    'NoBuffers': (NoBuffers, False),
}
if not ends_of_frames_are_enforced():  # else it takes what is refused
    SURPRISES['LooseFrames'] = LooseUnpickler, True


class TestSurprises(Loads):
    """Another unpickler, while the serial load stays what it is."""

    def test_surprises(self):
        for unpickler, (cls, is_suited) in SURPRISES.items():
            for name, stream in streams_with_payloads().items():
                with self.subTest(unpickler=unpickler, stream=name):
                    with mock.patch.object(pickle, 'Unpickler', cls):
                        done = self.check(stream)
                    if name == 'plain':
                        self.assertEqual(done, is_suited)


if __name__ == '__main__':
    unittest.main()
