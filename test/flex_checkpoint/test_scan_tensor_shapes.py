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

import copyreg
import os
import pickle
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp import distcp_reader
from paddle.distributed.flex_checkpoint.dcp.distcp_reader import (
    DistcpFormatError,
    scan_tensor_shapes,
)
from parameterized import parameterized

PROTOCOLS = [(2,), (3,), (4,), (5,)]
DTYPES = [
    'bool', 'int8', 'int16', 'int32', 'int64', 'uint8', 'uint16',
    'float16', 'float32', 'float64', 'complex64', 'complex128',
]  # fmt: skip
NAME_TABLE = 'StructuredToParameterName@@'
# Just under, at and above the size from which payloads leave the frames.
SIZES = [0, 1, 7, 16383, 16384, 16385, 50000]
called = []


def mark(*args):
    """What a hostile file would have called; harmless, but seen."""
    called.append(args)


class Hostile:
    def __reduce__(self):
        return mark, ('called',)


def shapes_of(arrays):
    return {key: array.shape for key, array in arrays.items()}


def sample_arrays():
    arrays = {f'size_{size}': np.zeros(size, 'f4') for size in SIZES}
    arrays |= {f'dtype_{name}': np.ones((3, 2), name) for name in DTYPES}
    arrays |= {f'large_{name}': np.ones((300, 400), name) for name in DTYPES}
    arrays['scalar'] = np.array(2.5)
    arrays['no_rows'] = np.zeros((0, 5), 'f4')
    arrays['fortran'] = np.asfortranarray(np.ones((200, 300), 'f4'))
    arrays['permuted'] = np.ones((2, 30, 400), 'f4').transpose(1, 0, 2)
    arrays['strided'] = np.ones((200, 300), 'f4')[::2]
    arrays['read_only'] = np.ones((200, 300), 'f4')
    arrays['read_only'].flags.writeable = False
    arrays['all_bytes'] = np.arange(2**17).astype('u1')
    return arrays


class DistcpFileTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, '0_0.distcp')
        called.clear()

    def write(self, data):
        with open(self.path, 'wb') as f:
            f.write(data)

    def dump(self, value, protocol=4):
        with open(self.path, 'wb') as f:
            pickle.dump(value, f, protocol)

    def data(self):
        with open(self.path, 'rb') as f:
            return f.read()

    def check_refused(self, *words):
        with self.assertRaises(DistcpFormatError) as raised:
            scan_tensor_shapes(self.path)
        for word in (self.path, *words):
            self.assertIn(word, str(raised.exception))


class TestShapes(DistcpFileTest):
    @parameterized.expand(PROTOCOLS)
    def test_every_kind_of_array(self, protocol):
        arrays = sample_arrays()
        self.dump({**arrays, NAME_TABLE: {'scalar': 'b'}}, protocol)
        shapes = scan_tensor_shapes(self.path)
        self.assertEqual(shapes, shapes_of(arrays))
        self.assertEqual(list(shapes), list(arrays))

    @parameterized.expand(PROTOCOLS)
    def test_modules_of_numpy_1(self, protocol):
        arrays = {'a': np.ones((2, 3), 'f4'), 'b': np.ones((3, 4))}
        data = pickle.dumps(arrays, protocol)
        older = data.replace(b'numpy._core.', b'numpy.core.')
        missing = len(data) - len(older)
        self.assertGreater(missing, 0)
        for name in (b'multiarray', b'numeric'):
            new = b'numpy.core.' + name
            older = older.replace(
                bytes([len(new) + 1]) + new, bytes([len(new)]) + new
            )
        if protocol >= 4:
            frame = int.from_bytes(older[3:11], 'little') - missing
            older = older[:3] + frame.to_bytes(8, 'little') + older[11:]
        self.write(older)
        self.assertEqual(scan_tensor_shapes(self.path), shapes_of(arrays))

    @parameterized.expand([(2,), (3,), (4,)])
    def test_what_paddle_save_writes(self, protocol):
        tensors = {
            'bfloat16': paddle.ones([2, 3], dtype='bfloat16'),
            'large_bfloat16': paddle.ones([300, 400], dtype='bfloat16'),
            'bool': paddle.ones([3], dtype='bool'),
            'scalar': paddle.to_tensor(1.0),
            'transposed': paddle.ones([200, 300]).t(),
        }
        paddle.save(dict(tensors), self.path, protocol=protocol)
        self.assertEqual(
            scan_tensor_shapes(self.path),
            {key: tuple(value.shape) for key, value in tensors.items()},
        )

    @parameterized.expand(PROTOCOLS)
    def test_more_keys_than_a_batch_of_pickle(self, protocol):
        arrays = {f'key.{i}': np.zeros((i % 5, 2), 'f4') for i in range(2500)}
        self.dump(arrays, protocol)
        self.assertEqual(scan_tensor_shapes(self.path), shapes_of(arrays))

    def test_two_keys_of_one_array(self):
        array = np.ones((200, 300), 'f4')
        self.dump({'a': array, 'b': array})
        self.assertEqual(
            scan_tensor_shapes(self.path), {'a': (200, 300), 'b': (200, 300)}
        )

    def test_no_tensors(self):
        self.dump({})
        self.assertEqual(scan_tensor_shapes(self.path), {})


class TestBytesRead(DistcpFileTest):
    @parameterized.expand([(3,), (4,), (5,)])
    def test_large_tensors_are_not_read(self, protocol):
        num_tensors = 500
        self.dump(
            {
                f'model.layers.{i}.weight': np.zeros((200, 300), 'f4')
                for i in range(num_tensors)
            },
            protocol,
        )
        original, total_bytes = os.pread, 0

        def pread(fd, length, offset):
            nonlocal total_bytes
            data = original(fd, length, offset)
            total_bytes += len(data)
            return data

        with mock.patch.object(os, 'pread', pread):
            shapes, bytes_read = distcp_reader._scan(self.path)
        self.assertEqual(len(shapes), num_tensors)
        self.assertEqual(bytes_read, total_bytes)
        self.assertLess(total_bytes, 400 * num_tensors)


class TestDamagedFiles(DistcpFileTest):
    def test_missing_or_directory(self):
        with self.assertRaises(FileNotFoundError):
            scan_tensor_shapes(self.path)
        os.mkdir(self.path)
        with self.assertRaises(OSError):
            scan_tensor_shapes(self.path)

    @parameterized.expand(PROTOCOLS)
    def test_truncated_anywhere(self, protocol):
        self.dump({'a': np.ones((2, 3), 'f4'), 'b': np.array(1)}, protocol)
        data = self.data()
        for length in range(len(data)):
            self.write(data[:length])
            self.check_refused()

    @parameterized.expand([(3,), (4,), (5,)])
    def test_truncated_amid_or_behind_a_payload(self, protocol):
        self.dump(
            {'a': np.ones((200, 300), 'f4'), 'b': np.ones((300, 200), 'f4')},
            protocol,
        )
        size = os.path.getsize(self.path)
        for length in (1000, 240100, size - 240000, size - 1000, size - 1):
            os.truncate(self.path, length)
            self.check_refused()
            self.dump(
                {
                    'a': np.ones((200, 300), 'f4'),
                    'b': np.ones((300, 200), 'f4'),
                },
                protocol,
            )

    @parameterized.expand(PROTOCOLS)
    def test_padded(self, protocol):
        self.dump({'a': np.ones((200, 300), 'f4')}, protocol)
        data = self.data()
        for padding in (b'\0', b'.', b'\0' * 5000, data):
            self.write(data + padding)
            self.check_refused()

    def test_padded_within_the_last_frame(self):
        data = pickle.dumps({'a': np.ones((2, 3), 'f4')}, 4)
        padding = bytes(9)
        frame = int.from_bytes(data[3:11], 'little') + len(padding)
        self.write(data[:3] + frame.to_bytes(8, 'little') + data[11:] + padding)
        self.assertEqual(list(pickle.loads(self.data())), ['a'])
        self.check_refused('STOP')

    def test_payload_of_another_length(self):
        for shape in ((200, 300), (2, 3)):
            array = np.ones(shape, 'f4')
            _, arguments, state = array.__reduce__()

            class Wrong:
                def __reduce__(self, state=state):
                    function = np.ones(1).__reduce__()[0]
                    payload = state[4] + b'\0'
                    return (
                        function,
                        (np.ndarray, (0,), b'b'),
                        (*state[:4], payload),
                    )

            self.dump({'good': array, 'wrong': Wrong()})
            self.check_refused(
                "'wrong'", f'{array.nbytes} bytes', str(array.nbytes + 1)
            )

    def test_length_beyond_the_file(self):
        self.dump({'a': np.ones((200, 300), 'f4')}, 4)
        data = self.data()
        at = data.index(b'B' + (240000).to_bytes(4, 'little'))
        for length in (len(data) - at, 2**31, 2**32 - 1):
            self.write(
                data[: at + 1] + length.to_bytes(4, 'little') + data[at + 5 :]
            )
            self.check_refused(str(length))

    def test_metadata_or_noise_in_its_place(self):
        folder = os.path.dirname(self.path)
        dist.save_state_dict({'w': paddle.ones([2, 3])}, folder)
        os.replace(os.path.join(folder, '0.metadata'), self.path)
        self.check_refused('Metadata')
        for data in (b'', b'.', b'\x80\x04.', b'no pickle', bytes(9999)):
            self.write(data)
            self.check_refused()


class TestOtherContent(DistcpFileTest):
    @parameterized.expand(
        [
            ('structured', np.zeros(3, [('x', 'f4'), ('y', 'i4')])),
            ('object', np.array([1, 'a', None], dtype=object)),
            ('text', np.array(['a', 'bc'])),
            ('bytes', np.array([b'a', b'bc'])),
            ('dates', np.array(['2020-01-01'], 'M8[D]')),
            ('big_endian', np.ones(3, '>f4')),
            ('number', 3.5),
            ('list', [1, 2]),
            ('nested', {'inner': np.ones(3)}),
            ('numpy_scalar', np.float32(3)),
        ]
    )
    def test_no_plain_tensor(self, name, value):
        for protocol in (2, 3, 4, 5):
            self.dump({'good': np.ones(3), name: value}, protocol)
            self.check_refused()

    def test_the_key_is_named(self):
        for value in (3, {'inner': 1}, np.zeros(3, [('x', 'f4')])):
            self.dump({'good': np.ones(3), 'the.wrong.one': value})
            self.check_refused("'the.wrong.one'")

    @parameterized.expand(
        [('list', []), ('none', None), ('text', 'abc'), ('array', np.ones(3))]
    )
    def test_no_dict(self, _, value):
        self.dump(value)
        self.check_refused('dict')

    def test_keys_that_are_no_text(self):
        for key in (1, ('a', 1), None):
            self.dump({key: np.ones(3)})
            self.check_refused(type(key).__name__)

    def test_array_without_state(self):
        function, arguments, _ = np.ones(3).__reduce__()

        class Stateless:
            def __reduce__(self):
                return function, arguments

        self.dump({'a': Stateless()})
        self.check_refused("'a'")

    @parameterized.expand(
        [
            ('negative', (-1, -3)),
            ('bool', (True, 3)),
            ('float', (1.0, 3)),
            ('list', [1, 3]),
            ('too_many', (1,) * 65 + (3,)),
        ]
    )
    def test_shape_of_another_kind(self, _, shape):
        function, arguments, state = np.ones((1, 3), 'u1').__reduce__()

        class Odd:
            def __reduce__(self):
                return function, arguments, (1, shape, *state[2:])

        self.dump({'a': Odd()})
        self.check_refused("'a'", 'shape')

    def test_state_of_another_kind(self):
        function, arguments, state = np.ones((1, 3), 'u1').__reduce__()
        for at, values in ((0, (2, 1.0, True)), (3, (None, b'', 'F', 2))):
            for value in values:

                class Odd:
                    def __reduce__(self, at=at, value=value):
                        changed = [*state[:at], value, *state[at + 1 :]]
                        return function, arguments, tuple(changed)

                self.dump({'a': Odd()})
                self.check_refused('expected')

    def test_state_that_is_a_list(self):
        function, arguments, state = np.ones((1, 3), 'u1').__reduce__()

        class Odd:
            def __reduce__(self):
                return function, arguments, list(state)

        self.dump({'a': Odd()})
        self.check_refused('expected a tuple')

    def check_dtype_refused(self, arguments, state):
        class Odd:
            def __reduce__(self):
                return np.dtype, arguments, state

        function, made_of, (version, shape, _, *rest) = np.ones(3).__reduce__()

        class OfOdd:
            def __reduce__(self):
                return function, made_of, (version, shape, Odd(), *rest)

        self.dump({'a': OfOdd()})
        self.check_refused('expected')

    def test_dtype_of_another_kind(self):
        _, arguments, state = np.dtype('f8').__reduce__()
        self.assertEqual(len(state), 8)
        for odd in ((None, True), (False, ()), (False, 'x'), (0.5, True)):
            self.check_dtype_refused(('f8', *odd), state)
        for at, value in enumerate(state):
            if value is not None and at != 1:
                changed = (*state[:at], float(value), *state[at + 1 :])
                self.check_dtype_refused(arguments, changed)

    def test_dtype_with_more_or_fewer_arguments(self):
        for arguments in (b'', b'\x89', b'\x89\x89}', b'\x89\x89\x89\x89'):
            self.write(
                b'\x80\x05}X\1\0\0\0a'
                b'cnumpy\ndtype\n(X\2\0\0\0f8' + arguments + b'tRs.'
            )
            self.check_refused('__init__')

    @parameterized.expand([(False,), (True,)])
    def test_payload_that_is_a_key(self, is_walked):
        """A bytearray cannot be one, so paddle.load fails too."""

        def frame(content):
            return b'\x95' + len(content).to_bytes(8, 'little') + content

        if is_walked:
            walked = mock.patch.object(
                distcp_reader, '_walk_compact', return_value=None
            )
            walked.start()
            self.addCleanup(walked.stop)
        table = b'}\x8c' + bytes([len(NAME_TABLE)]) + NAME_TABLE.encode() + b'}'
        length = (65536).to_bytes(8, 'little')
        for opcode, words in (
            (b'\x8e', 'table of names'),
            (b'\x96', 'unhashable'),
        ):
            payload = opcode + length + bytes(65536)
            self.write(b'\x80\5' + frame(table) + payload + frame(b'K\1ss.'))
            self.check_refused(words)

    @parameterized.expand(
        [
            ('none', None),
            ('list', ['a']),
            ('other', {'b': 'x'}),
            ('int', {1: 'x'}),
        ]
    )
    def test_names_of_something_else(self, _, names):
        self.dump({'a': np.ones(3), NAME_TABLE: names})
        with self.assertRaises((AttributeError, KeyError)):
            paddle.load(self.path)
        self.check_refused('table of names')

    def test_names_of_some_and_of_the_table(self):
        """A tensor whose key is the table's is written over by it."""
        for names in ({'b': 'x'}, {'b': 'x', NAME_TABLE: 'y'}):
            self.dump({'a': np.ones(3), 'b': np.ones(2), NAME_TABLE: names})
            self.assertEqual(sorted(paddle.load(self.path)), ['a', 'b'])
            self.assertEqual(
                scan_tensor_shapes(self.path), {'a': (3,), 'b': (2,)}
            )


class TestNothingIsCalled(DistcpFileTest):
    @parameterized.expand(PROTOCOLS)
    def test_marker(self, protocol):
        for arrays in (
            {'hostile': Hostile(), 'a': np.ones((200, 300))},
            {'a': np.ones((200, 300)), 'hostile': Hostile()},
            {'a': np.ones(3), NAME_TABLE: {'a': Hostile()}},
        ):
            self.dump(arrays, protocol)
            pickle.loads(self.data())
            self.assertEqual(called, [('called',)], 'the marker does not bite')
            called.clear()
            self.check_refused('mark')
            self.assertEqual(called, [])

    def test_registered_extension(self):
        copyreg.add_extension(__name__, 'mark', 77)
        self.addCleanup(copyreg.remove_extension, __name__, 'mark', 77)
        self.write(b'\x80\x02}X\1\0\0\0a\x82\x4d)Rs.')
        pickle.loads(self.data())
        self.assertNotEqual(called, [], 'the marker does not bite')
        called.clear()
        self.check_refused('mark')
        self.assertEqual(called, [])

    def test_pipe_is_not_waited_for(self):
        os.mkfifo(self.path)
        with self.assertRaisesRegex(OSError, 'regular file'):
            scan_tensor_shapes(self.path)

    def test_nothing_is_imported(self):
        sys.modules.pop('this', None)
        self.write(b'\x80\x02}X\1\0\0\0acthis\ns\nRs.')
        self.check_refused('this.s')
        self.assertNotIn('this', sys.modules)

    @parameterized.expand(
        [
            # Opcodes on a stand-in: REDUCE with wrong arguments, NEWOBJ,
            # BUILD, APPENDS, SETITEMS, a stand-in as a key.
            ('reduce', b'cnumpy\ndtype\n)R'),
            ('reduce_marker', b'cnumpy\nndarray\n)R'),
            ('newobj', b'cnumpy\ndtype\n)\x81'),
            ('newobj_marker', b'cnumpy\nndarray\n)\x81'),
            ('build', b'cnumpy\ndtype\n(X\2\0\0\0f4\x89\x88tR}b'),
            ('appends', b'cnumpy\ndtype\n(X\2\0\0\0f4\x89\x88tR(K\1e'),
            ('setitems', b'cnumpy\ndtype\n(X\2\0\0\0f4\x89\x88tR(K\1K\2u'),
            ('key', b'}cnumpy\ndtype\n(X\2\0\0\0f4\x89\x88tRK\1s'),
            ('encode', b'c_codecs\nencode\n(X\1\0\0\0aX\5\0\0\0rot13tR'),
            ('persistent', b'X\1\0\0\0aQ'),
            ('extension', b'\x82\1'),
            ('buffer', b'\x97'),
        ]
    )
    def test_stand_ins_are_inert(self, _, value):
        before = dict(distcp_reader._STAND_INS)
        self.write(b'\x80\x05}X\1\0\0\0a' + value + b's.')
        self.check_refused('received')
        self.assertEqual(distcp_reader._STAND_INS, before)
        self.dump({'a': np.ones((2, 3), 'f4')})
        self.assertEqual(scan_tensor_shapes(self.path), {'a': (2, 3)})

    @parameterized.expand(
        [
            ('build_global', b'cnumpy\ndtype\n}X\1\0\0\0xK\1sb'),
            ('build_slots', b'c_codecs\nencode\nN}X\1\0\0\0xK\1s\x86b'),
            (
                'build_bytes',
                b'c__builtin__\nbytes\n)RN}X\x0c\0\0\0length_bytesK\4s\x86b',
            ),
        ]
    )
    def test_stand_ins_take_no_state(self, _, value):
        self.write(b'\x80\x05}X\1\0\0\0a' + value + b's.')
        self.check_refused('takes no state')


if __name__ == '__main__':
    unittest.main()
