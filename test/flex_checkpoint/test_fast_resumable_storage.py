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

import gc
import os
import pickle
import random
import unittest
from dataclasses import replace
from unittest import mock

import paddle
import paddle.distributed as dist
from fast_resumable_case import SEED, CheckpointTest, shard
from paddle.distributed.flex_checkpoint.dcp import (
    fast_resumable,
    metadata_reader,
    storage_reader,
)
from paddle.distributed.flex_checkpoint.dcp import (
    load_state_dict as loader,
)
from paddle.distributed.flex_checkpoint.dcp.metadata import (
    LocalTensorIndex,
    LocalTensorMetadata,
    Metadata,
)
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight
from paddle.distributed.flex_checkpoint.dcp.storage_reader import (
    without_collector,
)
from parameterized import parameterized

CASES = 150
FILES = ('0_0.distcp', '1_0.distcp', '10_0.distcp')


class StorageTest(CheckpointTest):
    """Rank 0's file exists; what is in it is not asked."""

    def setUp(self):
        super().setUp()
        self.dump({}, self.data_path())
        silent = mock.patch.object(fast_resumable.logger, 'info')
        self.log = silent.start()
        self.addCleanup(silent.stop)
        self.half = paddle.ones([2, 3])

    def weight(self, key='w', offset=(0, 0), flattened_range=None):
        return ShardedWeight(
            key,
            self.half,
            (2, 3),
            (8, 3),
            offset,
            flattened_range is not None,
            flattened_range,
        )

    def index(self, key='w', offset=(0, 0), **changes):
        whole = LocalTensorIndex(key, offset, local_shape=(2, 3))
        return replace(whole, **changes)

    def write(self, storage, protocol=4, **changes):
        described = {
            getattr(index, 'tensor_key', 'w'): [
                shard((2, 3), global_shape=(8, 3)),
                shard((2, 3), global_shape=(8, 3), global_offset=(2, 0)),
            ]
            for index in storage
        }
        metadata = replace(Metadata(described, storage, {}), **changes)
        self.dump(metadata, self.metadata_path, protocol)

    def rewrite(self, change):
        with open(self.metadata_path, 'rb') as f:
            data = f.read()
        changed = change(data)
        self.assertNotEqual(changed, data)
        with open(self.metadata_path, 'wb') as f:
            f.write(changed)

    def check(self, expected, state_dict=None, rank=None):
        state_dict = {'w': self.weight()} if state_dict is None else state_dict
        self.assertIs(self.stock(state_dict, rank), expected)
        self.assertIs(self.by_storage(state_dict, rank), expected)

    def check_declined(self, *words):
        wanted = {'w': self.weight()}
        for state_dict in (wanted, {}):
            self.assertIsNone(self.by_storage(state_dict, rank=0))
            self.assertEqual(self.gathered, [])
        for word in ('does not apply', *words):
            self.assertIn(word, self.log.call_args[0][0])


class TestSameAsTheStockCheck(StorageTest):
    def random_index(self, generator):
        index = self.index(
            generator.choice('wv'),
            generator.choice([(0, 0), (2, 0)]),
            replica_id=generator.choice([None, 0, 1]),
        )
        if generator.random() < 0.2:
            index = replace(index, local_shape=None)
        if generator.random() < 0.2:
            index = replace(index, is_flattened=True, flattened_range=(0, 3))
        return index

    def random_wanted(self, generator):
        return {
            key: self.weight(
                key,
                generator.choice([(0, 0), (2, 0)]),
                generator.choice([None] * 4 + [slice(0, 3)]),
            )
            for key in generator.choice(['w', 'v', 'wv', ''])
        }

    @parameterized.expand([(2,), (3,), (4,), (5,)])
    def test_generated(self, protocol):
        generator = random.Random(SEED)
        answers = []
        for case in range(CASES):
            storage = {
                self.random_index(generator): generator.choice(FILES)
                for _ in range(generator.randint(1, 12))
            }
            self.write(storage, protocol)
            wanted = self.random_wanted(generator)
            for rank in (None, 0, 1):
                expected = self.stock(wanted, rank)
                self.assertIs(
                    self.by_storage(wanted, rank),
                    expected,
                    f'seed {SEED}, case {case}: {storage}, {wanted}',
                )
                answers.append(expected)
        self.assertGreater(min(answers.count(True), answers.count(False)), 45)

    @parameterized.expand([(FILES[:2], False), (FILES[1::-1], True)])
    def test_of_equal_indexes_the_last_one_counts(self, files, expected):
        # No dict holds both; the second key is written over with the first.
        storage = {
            self.index(letter * 9): name
            for letter, name in zip('wx', files, strict=True)
        }
        described = {'w' * 9: [shard((2, 3))]}
        self.write(storage, state_dict_metadata=described)
        self.rewrite(lambda data: data.replace(b'x' * 9, b'w' * 9))
        self.assertEqual(
            len(paddle.load(self.metadata_path).storage_metadata), 1
        )
        self.check(expected, {'w' * 9: self.weight('w' * 9)})

    def test_one_of_several_replicas_is_enough(self):
        self.write(
            {
                self.index(replica_id=0): '1_0.distcp',
                self.index(replica_id=1): '0_0.distcp',
            }
        )
        self.check(True)

    def test_values_that_are_equal_though_of_other_types(self):
        self.write({self.index(offset=(0.0, False), is_flattened=0): FILES[0]})
        self.check(True)

    def test_split_and_whole_together(self):
        whole = {'whole': paddle.ones([4]), 'w': self.half}
        self.save({'whole': paddle.ones([4])})
        self.write(
            {
                **paddle.load(self.metadata_path).storage_metadata,
                self.index(): '0_0.distcp',
            }
        )
        self.check(True, whole)
        self.check(False, {**whole, 'other': self.half})

    def test_missing_file(self):
        self.write({self.index(): '0_0.distcp'})
        os.remove(self.data_path())
        self.check(False)
        self.check(False, rank=0)
        self.assertEqual(self.gathered, [False])

    def test_bytes_behind_the_end(self):
        self.write({self.index(): '0_0.distcp'})
        self.rewrite(lambda data: data + b'\0')
        self.check(True)

    def test_one_collective_of_a_bool(self):
        self.write({self.index(): '0_0.distcp'})
        self.check(True, rank=0)
        self.assertEqual(self.gathered, [True])
        self.assertIs(self.by_storage({'w': self.weight()}, 0, False), False)
        self.check(False, {'w': self.weight(offset=(2, 0))}, rank=0)
        self.assertEqual(self.gathered, [False])
        for word in ("'w'", 'offset (2, 0)', 'at (0, 0).'):
            self.assertIn(word, self.log.call_args[0][0])


class TestNotRecognised(StorageTest):
    def setUp(self):
        super().setUp()
        self.storage = {self.index(): '0_0.distcp'}
        self.write(self.storage)

    @parameterized.expand(
        [(name, value)
         for name in ('state_dict_metadata', 'storage_metadata')
         for value in (None, {}, [], {1: 2}, {'w': '0_0.distcp'})]
    )  # fmt: skip
    def test_fields_of_another_kind(self, name, value):
        self.write(self.storage, **{name: value})
        self.check_declined()

    # The stock class refuses some of what is to be written as keys.
    @mock.patch.object(LocalTensorIndex, '__hash__', object.__hash__)
    def test_other_values_and_keys(self):
        storage, whole = self.storage, shard((2, 3))
        for written, shards in (
            ({self.index(): ['0_0.distcp']}, [whole]),
            ({self.index(offset=[0, 0]): '0_0.distcp'}, [whole]),
            ({**storage, self.index(offset=[2]): '1_0.distcp'}, [whole]),
            ({**storage, 'w': '1_0.distcp'}, [whole]),
            ({**storage, whole: '1_0.distcp'}, [whole]),
            (storage, whole),
            (storage, (whole,)),
            (storage, [whole, 'w']),
            (storage, [whole, self.index()]),
            (storage, [replace(whole, local_shape=[2])]),
        ):
            self.write(dict(written), state_dict_metadata={'w': shards})
            self.check_declined()

    def test_fields_missing_or_further(self):
        for change in (
            lambda state: state.pop('local_shape'),
            lambda state: state.update(version=2),
        ):
            index = self.index()
            storage = {index: '0_0.distcp'}
            change(index.__dict__)
            described = {'w': [shard((2, 3))]}
            self.write(storage, state_dict_metadata=described)
            self.check_declined('other fields')

    def test_other_module(self):
        name = Metadata.__module__.encode()
        self.dump(paddle.load(self.metadata_path), self.metadata_path, 2)
        self.rewrite(lambda data: data.replace(name, name[:-1] + b'b'))
        self.check_declined('metadatb')

    def test_nothing_that_is_named_is_imported_or_called(self):
        marker = os.path.join(self.path, 'marker')

        class Marker:
            def __reduce__(self):
                return os.mkdir, (marker,)

        for field in ('flat_mapping', 'state_dict_metadata'):
            self.write(self.storage, **{field: {'w': Marker()}})
            self.check_declined('mkdir')
        self.assertFalse(os.path.exists(marker))

    def test_classes_are_not_called(self):
        # NEWOBJ and REDUCE differ in one byte.
        self.rewrite(lambda data: data.replace(b')\x81', b')R'))
        self.assertFalse(self.stock({}))
        self.check_declined('a class is called')

    def test_state_with_another_use(self):
        # It is taken from the memo when its index is built, and filled again.
        self.write(self.storage, protocol=2)
        with open(self.metadata_path, 'rb') as f:
            data = f.read()
        state = data[data.rindex(b')\x81q') :][4:7]
        self.assertEqual(state[:2], b'}q')
        get = b'h' + state[2:]
        tail = b'ubX\n\0\0\x000_0.distcp'
        self.assertEqual(data.count(tail), 1)
        filled = b'ub' + get + b'K\x01K\x02s0' + tail[2:]
        self.rewrite(lambda data: data.replace(tail, filled))
        self.check(True)

    @parameterized.expand([(LocalTensorIndex,), (LocalTensorMetadata,)])
    def test_deep_tuples_are_not_hashed(self, cls):
        """Nor does the stock check, of objects that are not its own."""
        made = (
            self.index(replica_id=7)
            if cls is LocalTensorIndex
            else shard((7, 7), global_shape=(7, 7))
        )
        for name in ('global_offset', 'local_shape', 'flattened_range'):
            odd = replace(made, **{name: (12345,)})
            self.write(self.storage, protocol=2, flat_mapping={'x': odd})
            deep = b')' + b'\x85' * 1_000_000
            self.rewrite(
                lambda data, deep=deep: data.replace(
                    b'M' + (12345).to_bytes(2, 'little'), deep, 1
                )
            )
            self.check_declined('unsupported operand')

    def test_state_of_the_whole_that_is_no_dict(self):
        for protocol in (2, 4):
            self.write(self.storage, protocol)
            with open(self.metadata_path, 'rb') as f:
                data = f.read()
            # Behind the class and its object, the state: a dict of 3 pairs.
            at = data.index(b')\x81') + 2
            begin = data.index(b'}', at)
            pairs = b'](' + b''.join(
                b'X%s%s' % (len(name).to_bytes(4, 'little'), name.encode())
                + value + b'\x86'
                for name, value in (
                    ('state_dict_metadata', b'}'),
                    ('storage_metadata', b'}'),
                    ('flat_mapping', b'}'),
                )
            ) + b'eb.'  # fmt: skip
            head = data[:begin]
            if protocol == 4:
                head = data[:2] + data[11:begin]  # without its frame
            with open(self.metadata_path, 'wb') as f:
                f.write(head + pairs)
            with self.assertRaises(ValueError):
                paddle.load(self.metadata_path)
            self.check_declined('the state of the whole is no dict')

    def test_shard_without_a_state(self):
        self.write(self.storage, protocol=2)
        # The state of the first object is dropped instead of taken.
        self.rewrite(lambda data: data.replace(b'ub', b'u0', 1))
        self.assertFalse(self.stock({}))
        self.check_declined('is_hashable')

    def test_index_that_changes_when_it_is_a_key(self):
        self.write({self.index(): '1_0.distcp'}, protocol=2)
        values = {
            'tensor_key': b'X\1\0\0\0w',
            'global_offset': b']',
            'is_flattened': b'K\0',
        }
        fields = b''.join(
            b'X%s%s%s'
            % (
                len(name).to_bytes(4, 'little'),
                name.encode(),
                values.get(name, b'N'),
            )
            for name in vars(self.index())
        )

        def change(data):
            at = data.rindex(b')\x81q')
            get = b'h' + data[at + 3 : at + 4]
            # Before the last two opcodes but one, which end the whole.
            return data[:-3] + get + b'}(' + fields + b'ub0' + data[-3:]

        self.rewrite(change)
        self.assertFalse(self.stock({}))
        self.check_declined('unhashable')

    def test_truncated_or_no_pickle(self):
        with open(self.metadata_path, 'rb') as f:
            data = f.read()
        for length in range(len(data)):
            with open(self.metadata_path, 'wb') as f:
                f.write(data[:length])
            self.assertIsNone(self.by_storage({}), length)
        os.remove(self.metadata_path)
        self.check_declined('No such file')

    def test_any_byte_changed(self):
        self.write({**self.storage, self.index('v', (2, 0)): FILES[1]})
        with open(self.metadata_path, 'rb') as f:
            data = f.read()
        generator = random.Random(SEED)
        wanted = {'w': self.weight()}
        opcodes = b''.join(
            value
            for value in vars(pickle).values()
            if isinstance(value, bytes) and len(value) == 1
        )
        for case in range(1000):
            damaged = bytearray(data)
            for _ in range(generator.randint(1, 2)):
                at = generator.randrange(len(data))
                damaged[at] = generator.choice(opcodes + bytes(range(32)))
            with open(self.metadata_path, 'wb') as f:
                f.write(damaged)
            answer = self.by_storage(wanted)
            if answer is not None:
                message = f'seed {SEED}, case {case}: {bytes(damaged)!r}'
                self.assertIs(self.stock(wanted), answer, message)


class TestChoice(StorageTest):
    def choose(self, state_dict):
        with mock.patch.object(paddle, 'load', wraps=paddle.load) as load:
            answer = loader._resumable_locally(
                self.path, self.metadata_path, state_dict, False, None, True
            )
        self.loads = load.call_count
        return answer

    def test_metadata_is_loaded_for_a_reshard_alone(self):
        self.write({self.index(): '0_0.distcp'})
        collector = []
        original = paddle.load

        def load(path):
            collector.append(gc.isenabled())
            return original(path)

        self.assertIs(self.choose({'w': self.weight()}), True)
        self.assertEqual(self.loads, 0)
        self.assertTrue(loader._metadata_manager.is_metadata_list_empty())
        with mock.patch.object(paddle, 'load', load):
            self.assertIs(self.choose({'w': self.weight(offset=(2, 0))}), False)
        self.assertEqual(collector, [False])
        self.assertEqual(
            loader._metadata_manager.get_metadata_list(),
            [paddle.load(self.metadata_path)],
        )

    def test_split_tensors_are_noticed_at_the_beginning(self):
        self.write({self.index(f'w.{i}'): '0_0.distcp' for i in range(9000)})
        read_bytes = []
        original = metadata_reader._read_at

        def read_at(fd, offset, length):
            data = original(fd, offset, length)
            read_bytes.append(len(data))
            return data

        with mock.patch.object(metadata_reader, '_read_at', read_at):
            self.assertIsNone(self.fast({'w.0': self.weight('w.0')}))
        self.assertIn('not stored whole', self.log.call_args[0][0])
        # The first frame, its header, and the ends of the file.
        self.assertLess(sum(read_bytes), 70_000)
        self.check(True, {'w.0': self.weight('w.0')})

    def test_both_decline(self):
        self.write({self.index(): '0_0.distcp'}, flat_mapping=shard)
        self.assertIs(self.choose({'w': self.weight()}), True)
        self.assertEqual(self.loads, 1)

    def test_restore(self):
        tensors = {'w': self.weight()}
        dist.save_state_dict(tensors, self.path)
        self.half.zero_()
        with mock.patch.object(paddle, 'load', wraps=paddle.load) as load:
            dist.load_state_dict(tensors, self.path)
        self.assertEqual(
            [os.path.basename(call[0][0]) for call in load.call_args_list],
            ['0_0.distcp'],
        )
        self.assertEqual(float(self.half.sum()), 6.0)


class TestCollector(StorageTest):
    def setUp(self):
        super().setUp()
        self.addCleanup(gc.enable if gc.isenabled() else gc.disable)
        self.write({self.index(): '0_0.distcp'})

    @parameterized.expand([(True,), (False,)])
    def test_is_as_before(self, enabled):
        (gc.enable if enabled else gc.disable)()

        def interrupted(*args):
            self.assertFalse(gc.isenabled())
            raise raised

        for raised in (KeyboardInterrupt(), MemoryError(), ValueError()):
            with self.assertRaises(type(raised)):
                without_collector(interrupted)
            self.assertIs(gc.isenabled(), enabled)
        self.assertFalse(without_collector(gc.isenabled))
        self.assertIs(gc.isenabled(), enabled)

    def test_around_the_fast_check(self):
        gc.enable()
        seen = []
        read = mock.patch.object(
            fast_resumable,
            '_read_metadata_head',
            lambda path: seen.append(gc.isenabled()),
        )
        with read:
            self.assertIsNone(self.fast({'w': self.weight()}))
        self.assertEqual(seen, [False])
        self.assertTrue(gc.isenabled())

    def test_around_the_check_by_storage(self):
        gc.enable()
        original = storage_reader._load_storage
        for raised in (None, EOFError, KeyboardInterrupt):

            def load(path, raised=raised):
                self.assertFalse(gc.isenabled())
                if raised:
                    raise raised
                return original(path)

            with mock.patch.object(storage_reader, '_load_storage', load):
                if raised is KeyboardInterrupt:
                    with self.assertRaises(raised):
                        self.by_storage({'w': self.weight()})
                else:
                    self.assertIs(
                        self.by_storage({'w': self.weight()}),
                        None if raised else True,
                    )
            self.assertTrue(gc.isenabled())


if __name__ == '__main__':
    unittest.main()
