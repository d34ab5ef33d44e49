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


"""What the loader and the readers rely on of an unpickler, one test each.

Needs the standard library alone and runs on CPython 3.9 and later:
`python -m unittest unpickler_probe`. docs/unpickler.md says what for.
"""

import copyreg
import ctypes
import functools
import importlib.util
import io
import pickle
import pickletools
import struct
import sys
import unittest
from pathlib import Path
from unittest import mock

SOURCE = Path(__file__).parents[2] / 'python/paddle/framework/io_utils.py'

# Around the size of a frame, and of the first chunk where reads are bounded.
SIZES_BYTES = (0, 1, 255, 65535, 65536, (1 << 20) - 1, 1 << 20, 5 << 20)


def load_without_paddle():
    """The loader's module; an import of Paddle in it fails."""
    spec = importlib.util.spec_from_file_location('probed_io_utils', SOURCE)
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, paddle=None):
        spec.loader.exec_module(module)
    return module


io_utils = load_without_paddle()


def frame(content, claimed_bytes=None):
    length = len(content) if claimed_bytes is None else claimed_bytes
    return b'\x95' + struct.pack('<Q', length) + content


def sized(opcode, data):
    """An opcode with a length of its width, and what it is the length of."""
    formats = {b'B': '<I', b'X': '<I', b'T': '<I', b'C': 'B', b'\x8c': 'B'}
    return opcode + struct.pack(formats.get(opcode, '<Q'), len(data)) + data


class Trace:
    """A file that notes what is asked of it, beside what else happens."""

    def __init__(self, data):
        self._file = io.BytesIO(data)
        self.events = []
        self.looked_up = set()

    def __getattr__(self, name):
        self.looked_up.add(name)
        raise AttributeError(name)

    def note(self, event):
        self.events.append((event,))

    def read(self, length):
        self.events.append(('read', length))
        return self._file.read(length)

    def readinto(self, buffer):
        self.events.append(('readinto', len(buffer)))
        return self._file.readinto(buffer)

    def readline(self):
        self.events.append(('readline',))
        return self._file.readline()

    @property
    def bytes_left(self):
        return len(self._file.getbuffer()) - self._file.tell()


class TracedUnpickler(pickle.Unpickler):
    """Finds what the test gives it, whatever the names are."""

    def __init__(self, file, found=None, **options):
        super().__init__(file, encoding='latin1', **options)
        self.file, self.found = file, found

    def find_class(self, module, name):
        self.file.note(f'find {module}.{name}')
        return self.found

    def persistent_load(self, identifier):
        return identifier


def traced(data, found=None, **options):
    """-> (the value or the error, the trace)."""
    trace = Trace(data)
    try:
        return TracedUnpickler(trace, found, **options).load(), trace
    except Exception as error:
        return error, trace


# Valid arguments, after None was put in the memo at 0.
ARGUMENTS = {
    'INT': b'7\n', 'BININT': b'\7\0\0\0', 'BININT1': b'\7', 'BININT2': b'\7\0',
    'LONG': b'7L\n', 'LONG1': b'\1\7', 'LONG4': b'\1\0\0\0\7',
    'STRING': b"'a'\n", 'BINSTRING': b'\1\0\0\0a', 'SHORT_BINSTRING': b'\1a',
    'BINBYTES': b'\1\0\0\0a', 'SHORT_BINBYTES': b'\1a',
    'BINBYTES8': b'\1' + bytes(7) + b'a', 'UNICODE': b'a\n',
    'BYTEARRAY8': b'\1' + bytes(7) + b'a', 'SHORT_BINUNICODE': b'\1a',
    'BINUNICODE': b'\1\0\0\0a', 'BINUNICODE8': b'\1' + bytes(7) + b'a',
    'FLOAT': b'1.5\n', 'BINFLOAT': bytes(8), 'GET': b'0\n', 'BINGET': b'\0',
    'LONG_BINGET': bytes(4), 'PUT': b'0\n', 'BINPUT': b'\0',
    'LONG_BINPUT': bytes(4), 'EXT1': b'\xf1', 'EXT2': b'\xf1\0',
    'EXT4': b'\xf1\0\0\0', 'GLOBAL': b'm\nn\n', 'INST': b'm\nn\n',
    'PERSID': b'a\n', 'PROTO': b'\5',
}  # fmt: skip
LENGTH_BYTES = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}


def reads_of(opcode):
    """The calls for an opcode's argument; `bytes` may be read or read into."""
    argument = opcode.arg
    if argument.n == pickletools.UP_TO_NEWLINE:
        return [('readline',)] * (1 + argument.name.endswith('_pair'))
    if argument.n in LENGTH_BYTES:
        is_payload = 'bytes' in argument.name or 'bytearray' in argument.name
        rest = 'readinto' if is_payload else 'read'
        return [('read', LENGTH_BYTES[argument.n]), (rest, 1)]
    return [('read', argument.n)]


class TestUnpickler(unittest.TestCase):
    """Names of tests are those of the behaviours in docs/unpickler.md."""

    def test_three_methods(self):
        data = b'\x80\5' + frame(b'N0') + sized(b'B', bytes(99)) + b'cm\nn\n.'
        _, trace = traced(data)
        self.assertLessEqual(trace.looked_up, {'peek'})

    def test_reads_on_demand(self):
        one = ('read', 1)
        copyreg.add_extension('m', 'n', 0xF1)
        self.addCleanup(copyreg.remove_extension, 'm', 'n', 0xF1)
        probed = set()
        for opcode in pickletools.opcodes:
            if opcode.arg is None or opcode.name == 'FRAME':
                continue
            with self.subTest(opcode.name):
                copyreg.clear_extension_cache()
                code = opcode.code.encode('latin1')
                data = b'N\x94(N' + code + ARGUMENTS[opcode.name] + b'N.rest'
                value, trace = traced(data, found=lambda *args: args)
                self.assertIsNone(value)
                calls = [e for e in trace.events if not e[0].startswith('find')]
                expected = [one] * 5 + reads_of(opcode) + [one] * 2
                self.assertEqual(calls, expected)
                self.assertEqual(trace.bytes_left, len('rest'))
                probed.add(opcode.name)
        self.assertEqual(probed, set(ARGUMENTS))

    def test_nothing_ahead(self):
        """An opcode is executed before the next one is asked for."""
        trace = Trace(b'cm\nn\n)RN.')
        unpickler = TracedUnpickler(trace, lambda: trace.note('called'))
        unpickler.load()
        one, line = ('read', 1), ('readline',)
        self.assertEqual(
            trace.events,
            [one, line, line, ('find m.n',), one, one, ('called',), one, one],
        )

    def check_next_buffer(self, before, code, after):
        trace = Trace(before + code + after)
        given = [bytearray(b'one'), b'two']

        def buffers():
            for value in given:
                trace.note('buffer')
                yield value

        value = TracedUnpickler(trace, buffers=buffers()).load()
        for found, expected in ((value[0], given[0]), (value[1], given[1])):
            self.assertIs(found, expected)
        return trace.events

    def test_next_buffer_at_once(self):
        one, buffer = ('read', 1), ('buffer',)
        for before in (b'', b'\x80\2', b'\x80\4', b'\x80\5'):
            with self.subTest(before):
                events = self.check_next_buffer(before, b'\x97\x97', b'\x86.')
                start = [one] * len(before)
                self.assertEqual(
                    events, start + [one, buffer, one, buffer, one, one]
                )
        events = self.check_next_buffer(b'', frame(b'\x97\x97'), b'\x86.')
        self.assertEqual(
            events, [one, ('read', 8), ('read', 2), buffer, buffer, one, one]
        )

    def test_next_buffer_and_memo(self):
        value, _ = traced(b'N\x94\x97\x94h\0h\1\x87.', buffers=[b'x'])
        self.assertEqual(value, (b'x', None, b'x'))

    def test_slot_is_filled_again(self):
        """What MEMOIZE counts is slots, an empty one is an error."""
        for fill in (b'K\1q\0', b'K\1r\0\0\0\0', b'K\1p0\n'):
            value, _ = traced(b'N\x94' + fill + b'\x94h\0h\1\x87.')
            self.assertEqual(value, (1, 1, 1))
        for get in (b'h\1', b'j\1\0\0\0', b'g1\n'):
            value, _ = traced(b'N\x94' + get + b'.')
            self.assertIsInstance(value, (pickle.UnpicklingError, KeyError))

    def test_persistent_ids_are_handed_out(self):
        """Any object may be one, at once, and what comes back is pushed."""
        value, trace = traced(frame(b'K\1K\2\x86Q') + b'K\3\x86.')
        self.assertEqual(value, ((1, 2), 3))
        self.assertEqual(
            trace.events,
            [('read', 1), ('read', 8), ('read', 6)] + [('read', 1)] * 4,
        )

    def test_payload_is_read_into(self):
        for code in (b'C', b'B', b'\x8e', b'\x96'):
            for length in SIZES_BYTES:
                if code == b'C' and length > 255:
                    continue
                with self.subTest(code=code, length=length):
                    self.check_payload(code, bytes(length))

    def check_payload(self, code, data):
        stream = sized(code, data)
        value, trace = traced(stream + b'.')
        self.assertEqual(value, data)
        self.assertIs(type(value), bytearray if code == b'\x96' else bytes)
        opcode, length, *chunks, stop = trace.events
        self.assertEqual(opcode, ('read', 1))
        self.assertEqual(length, ('read', len(stream) - len(data) - 1))
        self.assertEqual({name for name, _ in chunks} - {'readinto'}, set())
        self.assertEqual(sum(count for _, count in chunks), len(data))
        self.assertEqual(stop, ('read', 1))
        if data:
            error, trace = traced(stream[:-1])
            self.assertIsInstance(error, pickle.UnpicklingError)
            self.assertEqual(trace.events[2:], chunks)

    def test_at_most_two_long_reads(self):
        """Of a string, and of a frame; then an opcode or `readinto`."""
        for length in SIZES_BYTES:
            text = sized(b'X', b'a' * length)
            for stream in (text, frame(b'N' * (length + 1))):
                with self.subTest(stream[:1], length=length):
                    value, trace = traced(stream + b'.')
                    self.assertNotIsInstance(value, Exception)
                    opcode, prefix, *rest, stop = trace.events
                    self.assertEqual((opcode, stop), (('read', 1),) * 2)
                    self.assertIn(prefix, (('read', 4), ('read', 8)))
                    reads = [count for name, count in rest if name == 'read']
                    self.assertEqual(rest[: len(reads)], [
                        ('read', count) for count in reads
                    ])  # fmt: skip
                    self.assertLessEqual(len(reads), 1)
                    self.assertEqual(
                        sum(count for _, count in rest),
                        len(stream) - 1 - prefix[1],
                    )

    def test_frame_is_read_before_it_is_executed(self):
        for length in (1, 3, 1 << 20, 3 << 20):
            content = b'cm\nn\n)R' + b'N' * length
            trace = Trace(frame(content) + b'.')
            called = functools.partial(trace.note, 'called')
            TracedUnpickler(trace, called).load()
            *reads, find, called, stop = trace.events
            self.assertEqual(reads[:2], [('read', 1), ('read', 8)])
            self.assertEqual(sum(n for _, n in reads[2:]), len(content))
            self.assertEqual((find, called), (('find m.n',), ('called',)))
            self.assertEqual(stop, ('read', 1))

    def test_end_of_frame(self):
        """Who lets go of a frame's rest asks for two bytes or more, or a line.

        It does so straight after the frame's content. Newer releases refuse an
        argument that reaches beyond its frame.
        """
        rest = b'aaaa\naaaa\n.'
        for held in (b'J\1\2', b'X\3\0', b'X\3\0\0\0a', b'cmm', b'I1', b'C\3a',
                     b'G\1', b'\x8c\3a', b'\x95\1', b'B\3\0'):  # fmt: skip
            with self.subTest(held):
                is_payload = held[:1] == b'C'
                stream = frame(held) + (b'bb.' if is_payload else rest)
                value, trace = traced(stream)
                first = [('read', 1), ('read', 8), ('read', len(held))]
                self.assertEqual(trace.events[:3], first)
                if 'before end of frame' in str(value):
                    self.assertEqual(trace.events, first)
                    continue
                name, *length = trace.events[3]
                if name == 'read':
                    self.assertGreater(length, [1])
                elif name == 'readinto':
                    self.assertTrue(is_payload)
                    self.assertEqual(value, b'abb')  # nothing is dropped
                else:
                    self.assertIn(held[:1], b'cI')

    def test_byte_argument_behind_a_frame(self):
        """It is refused, or nothing was held that could be let go of."""
        value, trace = traced(frame(b'NK') + b'\7.')
        if isinstance(value, Exception):
            self.assertIn('before end of frame', str(value))
        else:
            self.assertEqual(value, 7)
            self.assertEqual(trace.events[3], ('read', 1))

    def test_nothing_after_stop(self):
        for end in (b'.', frame(b'.'), frame(b'N0.NN')):
            _, trace = traced(b'\x80\5N' + end + b'rest')
            self.assertEqual(trace.bytes_left, len('rest'))

    def test_stop_gives_the_top(self):
        """Also where marks are open, and objects lie below."""
        self.assertEqual(traced(b'\x80\4N}(K\1K\2\x86.')[0], (1, 2))
        self.assertEqual(traced(b'\x80\4N(N(K\1tt.')[0], (None, (1,)))

    def test_errors_pass_through(self):
        class Stop(Exception):
            pass

        stop = Stop()
        stream = b'(NX\1\0\0\0acm\nn\n' + sized(b'B', bytes(99)) + b'\x97t.'
        for name in ('read', 'readinto', 'readline'):
            trace = Trace(stream)
            with (
                mock.patch.object(Trace, name, side_effect=stop),
                self.assertRaises(Stop) as caught,
            ):
                TracedUnpickler(trace, buffers=[b'']).load()
            self.assertIs(caught.exception, stop)

        def buffers():
            raise stop
            yield

        self.assertIs(traced(b'\x97.', buffers=buffers())[0], stop)

    def test_names_go_through_find_class(self):
        copyreg.add_extension('m', 'n', 0xF1)
        self.addCleanup(copyreg.remove_extension, 'm', 'n', 0xF1)
        copyreg.clear_extension_cache()
        found = object()
        for stream in (b'cm\nn\n.', b'\x8c\1m\x8c\1n\x93.', b'\x82\xf1.'):
            value, trace = traced(stream, found)
            self.assertIs(value, found)
            self.assertIn(('find m.n',), trace.events)
            copyreg.clear_extension_cache()

    def test_stand_ins_are_called(self):
        """By REDUCE, NEWOBJ and BUILD, with what the stream has."""

        class StandIn:
            def __new__(cls, *args):
                made = object.__new__(cls)
                made.args = args
                return made

            def __setstate__(self, state):
                self.state = state

        for call in (b'R', b'\x81'):
            value, _ = traced(b'cm\nn\nK\1\x85' + call + b'K\2b.', StandIn)
            self.assertIs(type(value), StandIn)
            self.assertEqual((value.args, value.state), ((1,), 2))

    def test_pickler_leaves_payloads_out_of_frames(self):
        least = io_utils._MIN_PAYLOAD_BYTES
        value = [
            b'a' * least,
            b'b' * (least - 1),
            bytearray(least),
            'c' * least,
        ]
        for protocol in (4, 5):
            data = pickle.dumps(value, protocol)
            found = io_utils._index_payloads(
                lambda at, length, data=data: data[at : at + length], len(data)
            )
            held = [data[p.offset : p.end] for p in found]
            # Before protocol 5 a bytearray is made from bytes or text.
            self.assertIn(held, (value[::2], [value[0], bytes(least)]))
            self.assertEqual(found[-1].is_bytearray, protocol == 5)

    def test_objects_are_made_first_and_filled(self):
        api = io_utils._python_api()
        for kind, cls in (('bytes', bytes), ('bytearray', bytearray)):
            make, locate = api[kind]
            one, two = make(None, 1 << 18), make(None, 1 << 18)
            for value, byte in ((one, b'a'), (two, b'b')):
                view = api['view'](locate(value), 1 << 18, 0x200)
                view[:] = byte * (1 << 18)
                del view
            self.assertEqual(one, cls(b'a' * (1 << 18)))
            self.assertEqual(two, cls(b'b' * (1 << 18)))
            self.assertEqual(
                ctypes.string_at(locate(one) + (1 << 18), 1), b'\0'
            )


def ends_of_frames_are_enforced():
    error, _ = traced(frame(b'J\1') + b'\0\0\0.')
    return 'before end of frame' in str(error)


def describe():
    """In what releases differ, of which none gives another value."""
    _, trace = traced(sized(b'\x8e', bytes(5 << 20)) + b'.')
    bounds = [length for name, *length in trace.events if name == 'readinto']
    bounded = f'from {bounds[0][0]} bytes on' if len(bounds) > 1 else 'at once'
    ends = 'are' if ends_of_frames_are_enforced() else 'are not'
    return (
        f'CPython {sys.version.split()[0]}: payloads of 5 MiB are read '
        f'{bounded}; ends of frames {ends} enforced'
    )


if __name__ == '__main__':
    print(describe(), flush=True)
    unittest.main(module=None, argv=[
        sys.argv[0], 'unpickler_probe', 'unpickler_probe_loads',
    ])  # fmt: skip
