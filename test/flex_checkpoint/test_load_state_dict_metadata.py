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

import contextlib
import copyreg
import io
import os
import pickle
import re
import sys
import tempfile
import unittest
from unittest import mock

import paddle
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp import (
    metadata_reader,
    storage_reader,
)
from paddle.distributed.flex_checkpoint.dcp.metadata import (
    LocalTensorIndex,
    LocalTensorMetadata,
    Metadata,
)
from parameterized import parameterized

OLDER_MODULE = b'paddle.distributed.checkpoint.metadata'
FIELDS = ('state_dict_metadata', 'storage_metadata', 'flat_mapping')
FRAME_BYTES = 64 * 1024
FRAME_HEADER_BYTES = 9
called = []


def mark(*args):
    """What a hostile file would have called; harmless, but seen."""
    called.append(args)


class Hostile:
    def __reduce__(self):
        return mark, ('called',)


def make_metadata(keys, num_ranks=1, shape=(2, 3)):
    """Metadata of a checkpoint whose tensors every rank has stored whole."""
    offset = (0,) * len(shape)
    shards = {
        key: [LocalTensorMetadata(offset, shape, 'float32', shape)]
        for key in keys
    }
    storage = {
        LocalTensorIndex(
            key, offset, replica_id=rank, local_shape=shape
        ): f'{rank}_0.distcp'
        for key in keys
        for rank in range(num_ranks)
    }
    return Metadata(shards, storage, {key: (key,) for key in keys})


def with_fields(metadata, fields):
    metadata.__dict__.clear()
    metadata.__dict__.update(fields)
    return metadata


def rename_module(data):
    """A pickle of protocol 2 or 3 as an older release wrote it."""
    return data.replace(Metadata.__module__.encode(), OLDER_MODULE)


def at_run_time(text):
    """An equal string that is another object, so that pickle spells it."""
    return ''.join(list(text))


class MetadataFileTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, '0.metadata')
        called.clear()

    def write(self, data):
        with open(self.path, 'wb') as f:
            f.write(data)

    def load_in_part(self):
        return dist.load_state_dict_metadata(self.path, allow_full_load=False)

    @contextlib.contextmanager
    def count_reads(self):
        """Ends of what is read, but for the tail and the frames' headers."""
        original = metadata_reader._read_at
        size = os.path.getsize(self.path)
        ends = []

        def read_at(fd, offset, length):
            data = original(fd, offset, length)
            if offset != size - 2 and length != FRAME_HEADER_BYTES:
                ends.append(offset + len(data))
            return data

        with mock.patch.object(metadata_reader, '_read_at', read_at):
            yield ends


class TestLoadStateDictMetadata(MetadataFileTest):
    @parameterized.expand([(2,), (3,), (4,), (5,)])
    def test_equals_the_full_load(self, protocol):
        for num_keys in (0, 1, 2, 1000, 1001, 2500):
            keys = [f'layer.{i}' for i in range(num_keys)]
            metadata = make_metadata(keys, num_ranks=2)
            self.write(pickle.dumps(metadata, protocol))
            with mock.patch.object(paddle, 'load', side_effect=AssertionError):
                shards = dist.load_state_dict_metadata(self.path)
            self.assertEqual(shards, metadata.state_dict_metadata)
            self.assertEqual(list(shards), keys)

    def test_reads_what_save_state_dict_wrote(self):
        folder = os.path.dirname(self.path)
        dist.save_state_dict(
            {'model': {'w': paddle.ones([2, 3]), 'b': paddle.to_tensor(1.0)}},
            folder,
        )
        shards = self.load_in_part()
        self.assertEqual(list(shards), ['model.w', 'model.b'])
        self.assertEqual(shards['model.w'][0].global_shape, (2, 3))
        self.assertEqual(shards['model.b'][0].local_shape, ())

    @parameterized.expand(
        [
            (f'{name}_{protocol}_{kind}', name, protocol, kind)
            for name in FIELDS
            for protocol in (2, 4)
            for kind in ('interned', 'run_time')
        ]
    )
    def test_keys_named_after_fields(self, _, name, protocol, kind):
        key = name if kind == 'interned' else at_run_time(name)
        metadata = make_metadata(['first', key, 'last'])
        self.write(pickle.dumps(metadata, protocol))
        shards = self.load_in_part()
        if shards is None:
            # The field's key is a reference to the tensor's, and not found.
            self.assertEqual(kind, 'interned')
            shards = dist.load_state_dict_metadata(self.path)
        self.assertEqual(shards, metadata.state_dict_metadata)

    def test_key_that_holds_the_cut_pattern(self):
        key = 'x\x10storage_metadata \x8c\x10storage_metadata'
        metadata = make_metadata([key, 'X\x10\0\0\0storage_metadata'])
        self.write(pickle.dumps(metadata, 4))
        self.assertEqual(self.load_in_part(), metadata.state_dict_metadata)

    def test_fields_in_another_order(self):
        metadata = make_metadata(['a', 'b'])
        state = dict(metadata.__dict__)
        for order in (FIELDS[::-1], (FIELDS[1], FIELDS[0], FIELDS[2])):
            with_fields(metadata, {name: state[name] for name in order})
            self.write(pickle.dumps(metadata, 4))
            shards = dist.load_state_dict_metadata(self.path)
            self.assertEqual(shards, state['state_dict_metadata'])

    def test_further_fields(self):
        metadata = make_metadata(['a', 'b'])
        state = dict(metadata.__dict__)
        for at in range(4):
            items = list(state.items())
            items.insert(at, ('version', (1, 2)))
            with_fields(metadata, dict(items))
            self.write(pickle.dumps(metadata, 4))
            shards = dist.load_state_dict_metadata(self.path)
            self.assertEqual(shards, state['state_dict_metadata'])

    @parameterized.expand([(2,), (3,)])
    def test_older_module_path(self, protocol):
        metadata = make_metadata(['a', 'b'])
        self.write(rename_module(pickle.dumps(metadata, protocol)))
        shards = self.load_in_part()
        self.assertEqual(shards, metadata.state_dict_metadata)
        self.assertIs(type(shards['a'][0]), LocalTensorMetadata)

    def test_other_fields_may_be_none(self):
        metadata = make_metadata(['a'])
        metadata.storage_metadata = metadata.flat_mapping = None
        self.write(pickle.dumps(metadata, 4))
        self.assertEqual(self.load_in_part(), metadata.state_dict_metadata)

    def test_a_full_load_goes_through_paddle_load(self):
        metadata = make_metadata(['a'])
        state = metadata.__dict__
        with_fields(metadata, {name: state[name] for name in FIELDS[:1]})
        self.write(pickle.dumps(metadata, 4))
        self.assertIsNone(self.load_in_part())
        with mock.patch.object(paddle, 'load', wraps=paddle.load) as load:
            shards = dist.load_state_dict_metadata(self.path)
        load.assert_called_once_with(self.path)
        self.assertEqual(shards, metadata.state_dict_metadata)


class TestNoMetadata(MetadataFileTest):
    def test_missing_file(self):
        for allow in (True, False):
            with self.assertRaises(FileNotFoundError):
                dist.load_state_dict_metadata(self.path, allow)

    def test_directory(self):
        os.mkdir(self.path)
        with self.assertRaises(OSError):
            dist.load_state_dict_metadata(self.path)

    @parameterized.expand(
        [
            ('empty', b''),
            ('text', b'no pickle at all'),
            ('list', pickle.dumps([1, 2], 4)),
            ('dict', pickle.dumps({'state_dict_metadata': {}}, 4)),
            ('nothing_in_it', pickle.dumps(Metadata(None, {}, {}), 4)),
            ('shards_are_no_lists', pickle.dumps(Metadata({'a': 1}, {}), 4)),
        ]
    )
    def test_other_content(self, _, data):
        self.write(data)
        self.assertIsNone(self.load_in_part())
        with self.assertRaisesRegex(ValueError, '0.metadata.*Metadata'):
            dist.load_state_dict_metadata(self.path)

    @parameterized.expand([(2,), (4,)])
    def test_truncated_anywhere(self, protocol):
        metadata = make_metadata(['first', 'storage_metadata'], num_ranks=2)
        data = pickle.dumps(metadata, protocol)
        for length in range(len(data)):
            self.write(data[:length])
            shards = self.load_in_part()
            self.assertIn(shards, (None, metadata.state_dict_metadata))
            head = metadata_reader._read_metadata_head(self.path)
            self.assertIsNone(head, f'cut at {length} of {len(data)}')

    def test_frame_longer_than_the_file(self):
        data = bytearray(pickle.dumps(make_metadata(['a']), 4))
        data[3:11] = (2**40).to_bytes(8, 'little')
        self.write(data)
        self.assertIsNone(self.load_in_part())


class TestNothingIsCalled(MetadataFileTest):
    @parameterized.expand(
        [
            (f'{name}_{protocol}', name, protocol)
            for name in FIELDS
            for protocol in (2, 4)
        ]
    )
    def test_marker(self, _, name, protocol):
        metadata = make_metadata(['a'])
        getattr(metadata, name)['hostile'] = Hostile()
        data = pickle.dumps(metadata, protocol)
        self.write(data)
        pickle.loads(data)
        self.assertEqual(called, [('called',)], 'the marker does not bite')
        called.clear()
        self.load_in_part()
        metadata_reader._read_metadata_head(self.path)
        self.assertEqual(called, [])

    def test_nothing_is_imported(self):
        data = pickle.dumps(make_metadata(['a']), 2).replace(
            Metadata.__module__.encode(), b'this'
        )
        self.write(data)
        sys.modules.pop('this', None)
        self.assertIsNone(self.load_in_part())
        self.assertIsNone(metadata_reader._read_metadata_head(self.path))
        self.assertNotIn('this', sys.modules)

    @parameterized.expand(['LocalTensorIndex', 'LocalTensorMetadata'])
    def test_no_attribute_of_a_class_is_set(self, name):
        data = pickle.dumps(make_metadata(['a']), 2)
        build = (
            f'c{Metadata.__module__}\n{name}\nN'.encode()
            + b'}X\x08\0\0\0__hash__Ns\x86b0'
        )
        self.write(data[:2] + build + data[2:])
        cls = getattr(metadata_reader, name)
        with mock.patch.object(cls, '__hash__', cls.__hash__):
            before = cls.__hash__
            self.assertIsNone(self.load_in_part())
            metadata_reader._read_metadata_head(self.path)
            self.assertIs(cls.__hash__, before)

    def test_registered_extension(self):
        copyreg.add_extension(__name__, 'mark', 77)
        self.addCleanup(copyreg.remove_extension, __name__, 'mark', 77)
        data = b'\x80\x02\x82\x4d.'
        self.assertIs(pickle.loads(data), mark)  # it is cached now
        with self.assertRaises(pickle.UnpicklingError):
            metadata_reader._MetadataUnpickler(data).load()

    def test_pipe_is_not_waited_for(self):
        os.mkfifo(self.path)
        for read in (
            self.load_in_part,
            lambda: metadata_reader._read_metadata_head(self.path),
            lambda: storage_reader._load_storage(self.path),
        ):
            with self.assertRaisesRegex(OSError, 'regular file'):
                read()

    def test_only_the_classes_of_the_module(self):
        for name in ('dataclass', 'LocalTensorMetadata.__init__'):
            unpickler = metadata_reader._MetadataUnpickler(b'')
            with self.assertRaises(pickle.UnpicklingError):
                unpickler.find_class(Metadata.__module__, name)


class TestBytesRead(MetadataFileTest):
    def frames(self, data):
        """Where the frames of a pickle end."""
        ends, position = [], 2
        while data[position : position + 1] == pickle.FRAME:
            length = int.from_bytes(data[position + 1 : position + 9], 'little')
            position += 9 + length
            ends.append(position)
        return ends

    def saved(self, num_keys, num_ranks, name='layer'):
        metadata = make_metadata(
            [f'{name}.{i}' for i in range(num_keys)], num_ranks
        )
        # As after a gather: keys of the storage are other objects.
        metadata.storage_metadata = pickle.loads(
            pickle.dumps(metadata.storage_metadata)
        )
        buffer = io.BytesIO()
        pickle.Pickler(buffer, 4).dump(metadata)
        self.write(buffer.getvalue())
        return metadata, buffer.getvalue()

    @parameterized.expand([(10, 2000), (1500, 16)])
    def test_no_more_than_the_frame_of_the_cut(self, num_keys, num_ranks):
        metadata, data = self.saved(num_keys, num_ranks)
        cut = data.index(b'\x8c\x10storage_metadata')
        ends = self.frames(data)
        last = next(i for i, end in enumerate(ends) if end > cut)
        self.assertGreater(len(ends), last + 3, 'the file is too small')
        with self.count_reads() as read_ends:
            shards = self.load_in_part()
        self.assertEqual(shards, metadata.state_dict_metadata)
        self.assertEqual(max(read_ends), ends[last])
        with self.count_reads() as read_ends:
            head = metadata_reader._read_metadata_head(self.path)
        self.assertEqual(head.state_dict_metadata, shards)
        self.assertEqual(max(read_ends), ends[last + 1])
        self.assertEqual(head.bytes_read, ends[last + 1])

    def test_cut_within_a_frame(self):
        """Where the bytes before happen to be those at the end of a file."""
        _, data = self.saved(300, 8, 'emb')
        self.assertGreater(len(data), 2 * FRAME_BYTES)
        ends = [m.end() for m in re.finditer(rb'b\.', data) if m.end() > 70_000]
        self.assertEqual(ends.pop(), len(data))
        self.assertGreater(len(ends), 100)
        for end in ends[::20]:
            self.write(data[:end])
            self.assertIsNone(self.load_in_part(), end)
            self.assertIsNone(metadata_reader._read_metadata_head(self.path))

    def test_first_entry_of_the_storage(self):
        metadata, data = self.saved(10, 2000)
        self.assertGreater(len(data), 4 * FRAME_BYTES)
        head = metadata_reader._read_metadata_head(self.path)
        self.assertIsNone(head.storage_metadata)
        self.assertEqual(
            head.first_index, next(iter(metadata.storage_metadata))
        )
        self.assertIn(b'0_0.distcp', head.tail)
        self.assertFalse(head.is_older)

    def test_small_file_is_read_whole(self):
        metadata, _ = self.saved(3, 2)
        head = metadata_reader._read_metadata_head(self.path)
        self.assertEqual(head.storage_metadata, metadata.storage_metadata)

    def test_many_wrong_places_are_given_up(self):
        keys = [at_run_time('storage_metadata') + str(i) for i in range(50)]
        metadata = make_metadata([])
        metadata.state_dict_metadata = {
            key: [[at_run_time('storage_metadata')]] for key in keys
        }
        self.write(pickle.dumps(metadata, 4))
        with mock.patch.object(
            metadata_reader, '_load_cut', return_value=None
        ) as load_cut:
            self.assertIsNone(self.load_in_part())
        self.assertEqual(load_cut.call_count, metadata_reader._MAX_CUTS)


class TestDocumentation(unittest.TestCase):
    def test_example_runs(self):
        import doctest

        example = doctest.DocTestParser().get_doctest(
            dist.load_state_dict_metadata.__doc__, {}, 'example', None, None
        )
        output = io.StringIO()
        failed, tried = doctest.DocTestRunner(verbose=False).run(
            example, out=output.write
        )
        self.assertEqual(failed, 0, output.getvalue())
        self.assertGreater(tried, 4)

    def test_is_public(self):
        self.assertIn('load_state_dict_metadata', dist.__all__)


if __name__ == '__main__':
    unittest.main()
