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
import os
import pickle
import random
import tempfile
import unittest
from dataclasses import replace
from unittest import mock

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp import (
    fast_resumable,
)
from paddle.distributed.flex_checkpoint.dcp import (
    load_state_dict as loader,
)
from paddle.distributed.flex_checkpoint.dcp.fast_resumable import (
    check_resumable_locally_fast,
    is_unsharded_state_dict_metadata,
)
from paddle.distributed.flex_checkpoint.dcp.metadata import (
    LocalTensorIndex,
    LocalTensorMetadata,
    Metadata,
)
from paddle.distributed.flex_checkpoint.dcp.metadata_manager import (
    MetadataManager,
)
from paddle.distributed.flex_checkpoint.dcp.save_state_dict import (
    balanced_dedup_key_in_dict,
)
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import (
    ShardedWeight,
    make_replicated_sharded_weight,
)
from paddle.distributed.flex_checkpoint.dcp.utils import (
    check_resumable_locally,
)
from parameterized import parameterized

SEED = 20261129
FIELDS = ('state_dict_metadata', 'storage_metadata', 'flat_mapping')
OLDER_MODULE = b'paddle.distributed.checkpoint.metadata'
DTYPES = [
    'bool', 'int8', 'int16', 'int32', 'int64', 'uint8', 'bfloat16',
    'float16', 'float32', 'float64', 'complex64', 'complex128',
]  # fmt: skip
PROTOCOLS = [(2,), (3,), (4,), (5,)]
# So many ranks write metadata that is not read to its end.
MANY_RANKS = 3000


def shard(shape, **changes):
    whole = LocalTensorMetadata((0,) * len(shape), shape, 'float32', shape)
    return replace(whole, **changes)


def metadata_of(shards, files):
    """Metadata as a save writes it.

    Args:
        shards (dict): key -> LocalTensorMetadata.
        files (dict): key -> names of the files that hold the tensor; the
            second and later ones are replicas.
    """
    storage = {}
    for key, names in files.items():
        for replica, name in enumerate(names):
            index = LocalTensorIndex(
                key,
                shards[key].global_offset,
                replica_id=replica if len(names) > 1 else None,
                local_shape=shards[key].local_shape,
            )
            storage[index] = name
    return Metadata(
        {key: [value] for key, value in shards.items()},
        storage,
        {key: (key,) for key in shards},
    )


class CheckpointTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = folder.name
        self.metadata_path = os.path.join(self.path, '0.metadata')
        loader.PATH_TO_CHECKPOINT_FILES.clear()
        loader._metadata_manager.clear()
        self.addCleanup(loader._metadata_manager.clear)

    def data_path(self, rank=0):
        return os.path.join(self.path, f'{rank}_0.distcp')

    def dump(self, value, path, protocol=4):
        with open(path, 'wb') as f:
            pickle.dump(value, f, protocol)

    def save(self, state_dict, metadata_protocol=4, data_protocol=4):
        dist.save_state_dict(state_dict, self.path)
        arrays = paddle.load(
            self.data_path(), return_numpy=True, keep_name_table=True
        )
        self.dump(arrays, self.data_path(), data_protocol)
        metadata = paddle.load(self.metadata_path)
        self.dump(metadata, self.metadata_path, metadata_protocol)
        return metadata

    def stock(self, state_dict, rank=None):
        """The stock check's answer; an error is no permission either."""
        manager = MetadataManager()
        try:
            manager.set_metadata_list([paddle.load(self.metadata_path)])
            with self.one_of_many(rank):
                return check_resumable_locally(
                    self.path, state_dict, manager, rank is not None, None
                )
        except Exception:
            return False

    def fast(self, state_dict, rank=None, others=True):
        with self.one_of_many(rank, others) as gathered:
            answer = check_resumable_locally_fast(
                self.metadata_path, self.path, state_dict, rank is not None
            )
        self.gathered = gathered
        return answer

    @contextlib.contextmanager
    def one_of_many(self, rank, others=True):
        """As if this process were one of the ranks, and all others said so."""
        gathered = []

        def gather(answers, answer, group=None):
            gathered.append(answer)
            answers.extend([answer, others])

        with (
            mock.patch.object(dist, 'get_rank', return_value=rank or 0),
            mock.patch.object(dist, 'all_gather_object', gather),
        ):
            yield gathered

    def check_equal(self, state_dict, expected, rank=None):
        self.assertEqual(self.stock(state_dict, rank), expected)
        self.assertIs(self.fast(state_dict, rank), expected)

    def check_declined(self, state_dict, *words, rank=None):
        self.check_log(state_dict, None, 'does not apply', *words, rank=rank)
        self.assertEqual(self.gathered, [])

    def check_log(self, state_dict, expected, *words, rank=None):
        with mock.patch.object(fast_resumable.logger, 'info') as info:
            self.assertIs(self.fast(state_dict, rank), expected)
        info.assert_called_once()
        for word in words:
            self.assertIn(word, info.call_args[0][0])


class TestSameAsTheStockCheck(CheckpointTest):
    def tensors(self):
        tensors = {
            f'{name}_{size}': paddle.ones([size, 4], dtype=name)
            for name in DTYPES
            for size in (3, 40000)
        }
        tensors['scalar'] = paddle.to_tensor(2.5)
        tensors['empty'] = paddle.zeros([0, 4])
        tensors['transposed'] = paddle.ones([200, 300]).t()
        return tensors

    @parameterized.expand(
        [(m, d) for m in (2, 3, 4, 5) for d in (2, 3, 4, 5) if 4 in (m, d)]
    )
    def test_every_kind_of_tensor(self, metadata_protocol, data_protocol):
        tensors = self.tensors()
        self.save(tensors, metadata_protocol, data_protocol)
        self.check_equal(tensors, True)
        self.check_equal(dict(list(tensors.items())[::-1]), True)
        self.check_equal(dict(list(tensors.items())[3:5]), True)
        self.check_equal({}, True)
        self.check_equal({**tensors, 'another': paddle.ones([2])}, False)
        for key in ('bfloat16_3', 'float32_40000', 'scalar', 'transposed'):
            for shape in ([2], [4, 3], [1, 3, 4], [40000, 2], [0, 4], []):
                changed = {**tensors, key: paddle.ones(shape)}
                self.assertIs(self.fast(changed), self.stock(changed))

    def test_dtype_is_not_compared(self):
        self.save({'w': paddle.ones([2, 3])})
        self.check_equal({'w': paddle.ones([2, 3], dtype='int64')}, True)

    def test_parameters(self):
        layer = paddle.nn.Linear(3, 4)
        self.save(layer.state_dict())
        self.check_equal(layer.state_dict(), True)
        self.check_equal(paddle.nn.Linear(4, 3).state_dict(), False)

    def test_dist_tensors(self):
        mesh = dist.ProcessMesh([0], dim_names=['x'])
        placed = {
            'sharded': dist.shard_tensor(
                paddle.ones([4, 6]), mesh, [dist.Shard(0)]
            ),
            'replicated': dist.shard_tensor(
                paddle.ones([5]), mesh, [dist.Replicate()]
            ),
        }
        self.save(placed)
        self.check_equal(placed, True)
        placed['replicated'] = dist.shard_tensor(
            paddle.ones([6]), mesh, [dist.Replicate()]
        )
        self.check_equal(placed, False)
        # Of another mesh: not on this rank, and nothing to restore.
        elsewhere = dist.ProcessMesh([1], dim_names=['x'])
        placed['replicated'] = dist.shard_tensor(
            paddle.ones([6]), elsewhere, [dist.Replicate()]
        )
        self.check_equal(placed, True)

    def test_sharded_weights(self):
        weights = {
            'w': make_replicated_sharded_weight('w', paddle.ones([4, 6])),
            's': make_replicated_sharded_weight('s', paddle.to_tensor(1.0)),
        }
        self.save(weights)
        self.check_equal(weights, True)
        for shape, offset in (((2, 6), (0, 0)), ((4, 6), (4, 0))):
            weights['w'] = ShardedWeight(
                'w', paddle.ones(shape), shape, (8, 6), offset
            )
            self.check_equal(weights, False)
        # The stock check does not look at the global shape.
        weights['w'] = ShardedWeight(
            'w', paddle.ones([4, 6]), (4, 6), (8, 6), (0, 0)
        )
        self.check_equal(weights, True)

    def test_flattened(self):
        whole = {'w': make_replicated_sharded_weight('w', paddle.ones([4, 6]))}
        flat = {
            'w': ShardedWeight(
                'w', paddle.ones([24]), (4, 6), (4, 6), (0, 0), True,
                slice(0, 24),
            )
        }  # fmt: skip
        self.save(whole)
        self.check_equal(flat, False)
        for path in os.listdir(self.path):
            os.remove(os.path.join(self.path, path))
        self.save(flat)
        self.assertTrue(self.stock(flat))
        self.check_declined(flat, "'w' is not stored whole")
        self.check_declined(whole, "'w' is not stored whole")

    def test_uninitialized_tensors_are_not_restored(self):
        self.save({'w': paddle.ones([2, 3])})
        missing = paddle.ones([4])
        missing._clear()
        self.assertFalse(missing._is_initialized())
        self.check_equal({'w': paddle.ones([2, 3]), 'gone': missing}, True)

    @parameterized.expand(PROTOCOLS)
    def test_more_keys_than_a_batch_of_pickle(self, protocol):
        tensors = {f'layer.{i}': paddle.ones([2]) for i in range(1203)}
        self.save(tensors, protocol, protocol)
        self.check_equal(tensors, True)
        tensors['layer.1202'] = paddle.ones([3])
        self.check_equal(tensors, False)

    @parameterized.expand([(name,) for name in FIELDS])
    def test_keys_named_after_fields(self, name):
        for key in (name, ''.join(list(name))):
            tensors = {'a': paddle.ones([2]), key: paddle.ones([3])}
            self.save(tensors)
            self.assertTrue(self.stock(tensors))
            self.assertIn(self.fast(tensors), (None, True))
            tensors[key] = paddle.ones([4])
            self.assertFalse(self.stock(tensors))
            self.assertIn(self.fast(tensors), (None, False))

    def test_nested_state_dict(self):
        nested = {'model': {'w': paddle.ones([2, 3])}}
        self.save(nested)
        self.check_equal({'model.w': paddle.ones([2, 3])}, True)
        self.check_declined(nested, "'model' has no local tensor")


class TestOtherMetadata(CheckpointTest):
    def setUp(self):
        super().setUp()
        self.tensors = {'a': paddle.ones([2, 3]), 'b': paddle.ones([4])}
        self.metadata = self.save(self.tensors)
        self.state = dict(self.metadata.__dict__)

    def rewrite(self, state, protocol=4):
        self.metadata.__dict__.clear()
        self.metadata.__dict__.update(state)
        self.dump(self.metadata, self.metadata_path, protocol)

    def check_not_more_permissive(self):
        for changed in (
            self.tensors,
            {**self.tensors, 'a': paddle.ones([3])},
            {**self.tensors, 'c': paddle.ones([3])},
        ):
            stock, fast = self.stock(changed), self.fast(changed)
            self.assertIn(fast, (None, stock))

    def test_order_of_fields(self):
        for order in (FIELDS[::-1], (FIELDS[1], FIELDS[0], FIELDS[2])):
            self.rewrite({name: self.state[name] for name in order})
            self.check_not_more_permissive()

    def test_further_fields(self):
        for at in range(4):
            items = list(self.state.items())
            items.insert(at, ('version', 2))
            self.rewrite(dict(items))
            self.check_not_more_permissive()

    @parameterized.expand([(name,) for name in FIELDS])
    def test_field_missing_or_none(self, name):
        self.rewrite({**self.state, name: None})
        self.check_not_more_permissive()
        del self.state[name]
        self.rewrite(self.state)
        self.check_not_more_permissive()

    def test_attributes_that_are_none(self):
        for field in ('global_offset', 'local_shape', 'global_shape',
                      'is_flattened'):  # fmt: skip
            shards = dict(self.state['state_dict_metadata'])
            shards['a'] = [replace(shards['a'][0], **{field: None})]
            self.rewrite({**self.state, 'state_dict_metadata': shards})
            self.check_declined(self.tensors, "'a' is not stored whole")
        for field in ('global_offset', 'local_shape', 'is_flattened'):
            storage = {
                replace(index, **{field: None}): name
                for index, name in self.state['storage_metadata'].items()
            }
            self.rewrite({**self.state, 'storage_metadata': storage})
            self.check_equal(self.tensors, False)

    def test_storage_of_another_kind(self):
        for storage in ({'a': '0_0.distcp'}, {1: 2}, {}, []):
            self.rewrite({**self.state, 'storage_metadata': storage})
            self.check_not_more_permissive()

    def test_older_module_path(self):
        data = pickle.dumps(self.metadata, 2).replace(
            Metadata.__module__.encode(), OLDER_MODULE
        )
        with open(self.metadata_path, 'wb') as f:
            f.write(data)
        self.check_declined(self.tensors, 'older release')

    def test_split_tensors(self):
        for changes in (
            [shard((2, 3)), shard((2, 3), global_offset=(2, 0))],
            [shard((2, 3), global_shape=(4, 3))],
            [shard((2, 3), global_offset=(1, 0))],
            [shard((2, 3), is_flattened=True)],
            [shard((2, 3), flattened_range=(0, 6))],
            [],
        ):
            shards = {**self.state['state_dict_metadata'], 'b': changes}
            self.assertFalse(is_unsharded_state_dict_metadata(shards))
            self.rewrite({**self.state, 'state_dict_metadata': shards})
            self.check_declined(self.tensors, "'b' is not stored whole")

    def test_missing_or_damaged(self):
        with open(self.metadata_path, 'rb') as f:
            data = f.read()
        for damaged in (b'', b'no pickle', data[:-1], data[:300], data + b'\0'):
            with open(self.metadata_path, 'wb') as f:
                f.write(damaged)
            self.check_declined(self.tensors, self.metadata_path)
        os.remove(self.metadata_path)
        self.check_declined(self.tensors, self.metadata_path, 'No such file')
        os.mkdir(self.metadata_path)
        self.check_declined(self.tensors, self.metadata_path)

    def test_any_byte_changed(self):
        with open(self.metadata_path, 'rb') as f:
            data = f.read()
        generator = random.Random(SEED)
        silent = mock.patch.object(fast_resumable.logger, 'info')
        silent.start()
        self.addCleanup(silent.stop)
        for case in range(1000):
            damaged = bytearray(data)
            for _ in range(generator.randint(1, 3)):
                at = generator.randrange(len(data))
                damaged[at] = generator.randrange(256)
            with open(self.metadata_path, 'wb') as f:
                f.write(damaged)
            if self.fast(self.tensors):
                message = f'seed {SEED}, case {case}: {bytes(damaged)!r}'
                self.assertTrue(self.stock(self.tensors), message)

    def test_is_unsharded(self):
        self.assertTrue(is_unsharded_state_dict_metadata({}))
        self.assertTrue(
            is_unsharded_state_dict_metadata(
                {'a': [shard((2, 3))], 'scalar': [shard(())]}
            )
        )
        self.assertFalse(is_unsharded_state_dict_metadata({'a': None}))
        self.assertFalse(is_unsharded_state_dict_metadata({'a': ['shard']}))


class TestOwnFile(CheckpointTest):
    def setUp(self):
        super().setUp()
        self.tensors = {'a': paddle.ones([2, 3]), 'b': paddle.ones([300, 200])}
        self.save(self.tensors)
        with open(self.data_path(), 'rb') as f:
            self.data = f.read()

    def check_false(self, *words):
        self.check_log(self.tensors, False, 'not resumable', *words)
        self.check_log(self.tensors, False, 'not resumable', *words, rank=0)
        self.assertEqual(self.gathered, [False])

    def test_damaged(self):
        for length in (0, 1, 100, len(self.data) // 2, len(self.data) - 1):
            with open(self.data_path(), 'wb') as f:
                f.write(self.data[:length])
            self.check_false(self.data_path(), 'unreadable')
        with open(self.data_path(), 'wb') as f:
            f.write(self.data + b'\0')
        self.check_false(self.data_path(), 'unreadable')

    def test_missing_or_directory(self):
        os.remove(self.data_path())
        self.check_false(self.data_path(), 'missing')
        os.mkdir(self.data_path())
        self.check_false(self.data_path(), 'not a file')

    def test_read_error(self):
        for error in (OSError(5, 'Input/output error'), MemoryError('full')):
            with mock.patch.object(fast_resumable, '_scan', side_effect=error):
                self.check_false('unreadable', str(error))

    def test_swapped(self):
        os.replace(self.metadata_path, self.data_path())
        self.dump(
            metadata_of(
                {key: shard(tuple(t.shape)) for key, t in self.tensors.items()},
                dict.fromkeys(self.tensors, ['0_0.distcp']),
            ),
            self.metadata_path,
        )
        self.check_false('unreadable')

    def test_holds_other_shapes(self):
        self.dump({'a': np.ones((3, 2)), 'b': np.ones((300, 200))},
                  self.data_path())  # fmt: skip
        self.check_false("'a'", 'shape (2, 3)', 'file has (3, 2)', '0 others')
        self.dump({'a': np.ones((2, 3))}, self.data_path())
        self.check_false("'b'", 'missing in the file')
        self.dump({}, self.data_path())
        self.check_false("'a'", 'missing in the file', '1 others')


class TestReasons(CheckpointTest):
    def setUp(self):
        super().setUp()
        self.weights = {
            key: make_replicated_sharded_weight(key, paddle.ones([4, 6]))
            for key in 'abc'
        }
        self.save(self.weights)

    def test_first_key_and_how_many_others(self):
        for key in 'bc':
            self.weights[key] = make_replicated_sharded_weight(
                key, paddle.ones([5, 6])
            )
        self.check_log(
            self.weights, False,
            "'b'", 'expected shape (5, 6)', 'has (4, 6)', '1 others',
        )  # fmt: skip

    def test_offset_flattened_missing(self):
        self.weights['b'] = ShardedWeight(
            'b', paddle.ones([4, 6]), (4, 6), (8, 6), (4, 0)
        )
        self.check_log(self.weights, False, "'b'", 'offset (4, 0)', '(0, 0)')
        self.weights['a'] = ShardedWeight(
            'a', paddle.ones([24]), (4, 6), (4, 6), (0, 0), True, slice(0, 24)
        )
        self.check_log(self.weights, False, "'a'", 'flattened', '(0, 24)')
        del self.weights['a'], self.weights['b']
        self.weights['d'] = self.weights['c']
        self.check_log(self.weights, False, "'d'", 'missing in the metadata')

    def test_what_was_read(self):
        read_bytes = os.path.getsize(self.metadata_path)
        self.check_log(
            self.weights, True,
            'is resumable', '3 tensors', f'{read_bytes} bytes', ' ms',
        )  # fmt: skip

    def test_another_rank_cannot(self):
        with mock.patch.object(fast_resumable.logger, 'info') as info:
            self.assertIs(self.fast(self.weights, 0, others=False), False)
        self.assertIn('1 other ranks', info.call_args[0][0])

    def test_one_collective_of_a_bool(self):
        self.assertIs(self.fast(self.weights, rank=0), True)
        self.assertEqual(self.gathered, [True])
        self.assertIs(self.fast(self.weights, rank=1), False)
        self.assertEqual(self.gathered, [False])
        self.assertIs(self.fast(self.weights), True)
        self.assertEqual(self.gathered, [])


class TestWhoseTensors(CheckpointTest):
    """A file may hold what the metadata ascribes to another one."""

    SHAPES = {'a': (2, 3), 'b': (4,), 'c': ()}

    def setUp(self):
        super().setUp()
        self.tensors = {
            key: paddle.ones(shape) for key, shape in self.SHAPES.items()
        }
        self.shards = {key: shard(shape) for key, shape in self.SHAPES.items()}

    def write_data(self, rank, keys='abc'):
        self.dump(
            {key: np.ones(self.SHAPES[key], 'f4') for key in keys},
            self.data_path(rank),
        )

    def write_metadata(self, files):
        metadata = metadata_of(self.shards, files)
        self.dump(metadata, self.metadata_path)

    def saved(self, num_ranks, save_replicas):
        index = {
            LocalTensorIndex(
                key, value.global_offset, local_shape=value.local_shape
            )
            for key, value in self.shards.items()
        }
        storage = balanced_dedup_key_in_dict(
            [
                dict.fromkeys(sorted(index, key=str), f'{rank}_0.distcp')
                for rank in range(num_ranks)
            ],
            save_replicas=save_replicas,
        )
        metadata = metadata_of(self.shards, {})
        metadata.storage_metadata = storage
        self.dump(metadata, self.metadata_path)
        return storage

    @parameterized.expand([(2,), (MANY_RANKS,)])
    def test_with_replicas(self, num_ranks):
        self.saved(num_ranks, save_replicas=True)
        for rank in (0, 1):
            self.write_data(rank)
            self.check_equal(self.tensors, True, rank)
        self.write_data(1, 'ab')
        self.assertIs(self.fast(self.tensors, 1), False)

    def test_without_replicas(self):
        storage = self.saved(2, save_replicas=False)
        for rank in (0, 1):
            own = [
                index.tensor_key
                for index, name in storage.items()
                if name == f'{rank}_0.distcp'
            ]
            self.write_data(rank, own)
            self.check_equal(self.tensors, False, rank)
            mine = {key: self.tensors[key] for key in own}
            self.check_equal(mine, True, rank)

    def test_file_that_a_later_save_has_replaced(self):
        self.saved(2, save_replicas=False)
        for rank in (0, 1):
            self.write_data(rank)
            self.check_equal(self.tensors, False, rank)
        self.check_log(
            self.tensors, False, 'does not ascribe it to 0_0.distcp', rank=0
        )
        self.check_equal(self.tensors, False)

    def long_metadata(self, first, rest, replica_id):
        """Metadata with so many further entries that its end is not read."""
        for number in range(MANY_RANKS):
            self.shards[f'more.{number}'] = shard((2,))
        metadata = metadata_of(
            self.shards,
            {
                **{key: [first] for key in self.SHAPES},
                **{key: [rest] for key in self.shards if key[0] == 'm'},
            },
        )
        metadata.storage_metadata = {
            replace(index, replica_id=replica_id): name
            for index, name in metadata.storage_metadata.items()
        }
        self.dump(metadata, self.metadata_path)

    def test_long_metadata_of_one_rank(self):
        self.long_metadata('0_0.distcp', '0_0.distcp', None)
        self.write_data(0)
        self.check_equal(self.tensors, True)
        self.check_declined(self.tensors, 'without replicas', rank=0)

    def test_long_metadata_that_is_damaged_behind_the_part_read(self):
        self.long_metadata('0_0.distcp', '0_0.distcp', None)
        self.write_data(0)
        size = os.path.getsize(self.metadata_path)
        with open(self.metadata_path, 'ab') as f:
            f.write(b'\0')
        self.check_declined(self.tensors, self.metadata_path)
        for length in range(size - 1, size - 40, -1):
            os.truncate(self.metadata_path, length)
            self.check_declined(self.tensors, self.metadata_path)

    def test_long_metadata_of_several_files(self):
        self.long_metadata('0_0.distcp', '1_0.distcp', None)
        self.write_data(0)
        self.check_declined(self.tensors, 'several files')

    @parameterized.expand(
        [('1_0.distcp',), ('10_0.distcp',), ('0_1.distcp',), ('0_0.distcp2',)]
    )
    def test_long_metadata_that_names_other_files(self, name):
        self.long_metadata(name, name, 0)
        self.write_data(0)
        self.assertFalse(self.stock(self.tensors))
        for rank in (None, 0):
            self.check_declined(self.tensors, 'name 0_0.distcp', rank=rank)

    def test_long_metadata_without_shapes(self):
        # As an older release wrote it.
        self.long_metadata('0_0.distcp', '0_0.distcp', 0)
        metadata = paddle.load(self.metadata_path)
        for index in metadata.storage_metadata:
            del index.__dict__['local_shape']
        self.dump(metadata, self.metadata_path)
        self.write_data(0)
        self.assertFalse(self.stock(self.tensors))
        self.check_declined(self.tensors, 'shapes')

    def test_long_metadata_without_indexes(self):
        self.long_metadata('0_0.distcp', '0_0.distcp', None)
        metadata = paddle.load(self.metadata_path)
        metadata.storage_metadata = {
            shard((number,)): '0_0.distcp' for number in range(4 * MANY_RANKS)
        }
        self.dump(metadata, self.metadata_path)
        self.write_data(0)
        self.assertFalse(self.stock(self.tensors))
        self.check_declined(self.tensors, 'no index of a tensor')

    @parameterized.expand([(1,), (9,), (10,)])
    def test_another_unique_id(self, unique_id):
        self.write_metadata(dict.fromkeys('abc', [f'0_{unique_id}.distcp']))
        self.write_data(0)
        self.check_equal(self.tensors, False)

    def test_ids_9_and_10_in_one_directory(self):
        for unique_id in (0, 9, 10):
            dist.save_state_dict(self.tensors, self.path, unique_id=unique_id)
            self.metadata_path = os.path.join(
                self.path, f'{unique_id}.metadata'
            )
            self.check_equal(self.tensors, unique_id == 0)


class TestChoice(CheckpointTest):
    """`_resumable_locally`, and what `load_state_dict` makes of it."""

    def setUp(self):
        super().setUp()
        self.tensors = {'a': paddle.arange(6.0), 'b': paddle.to_tensor(3.0)}
        self.save(self.tensors)

    def choose(self, state_dict, fast_resumable_check=True):
        self.loaded = []

        def load(path, **kwargs):
            self.loaded.append(os.path.basename(path))
            return original(path, **kwargs)

        original = paddle.load
        with mock.patch.object(paddle, 'load', load):
            return loader._resumable_locally(
                self.path,
                self.metadata_path,
                state_dict,
                False,
                None,
                fast_resumable_check,
            )

    def test_true_and_false_are_final(self):
        for state_dict, expected in (
            (self.tensors, True),
            ({'a': paddle.ones([7])}, False),
        ):
            stale = metadata_of({}, {})
            loader._metadata_manager.set_metadata_list([stale])
            with mock.patch.object(
                loader, 'check_resumable_locally', side_effect=AssertionError
            ):
                self.assertIs(self.choose(state_dict), expected)
            self.assertEqual(self.loaded, [])
            # What a failed load left behind is not taken for this checkpoint's.
            self.assertTrue(loader._metadata_manager.is_metadata_list_empty())

    def test_none_runs_the_stock_check(self):
        for switch, declined in ((True, True), (False, False)):
            with mock.patch.object(
                loader, 'check_resumable_locally_fast', return_value=None
            ) as fast:
                self.assertIs(self.choose(self.tensors, switch), True)
            self.assertEqual(fast.called, declined)
            self.assertEqual(self.loaded, ['0.metadata'])
            self.assertFalse(loader._metadata_manager.is_metadata_list_empty())
            loader._metadata_manager.clear()

    def restore(self, **options):
        target = {'a': paddle.zeros([6]), 'b': paddle.to_tensor(0.0)}
        loaded = []

        def load(path, **kwargs):
            loaded.append(os.path.basename(path))
            return original(path, **kwargs)

        original = paddle.load
        with mock.patch.object(paddle, 'load', load):
            dist.load_state_dict(target, self.path, **options)
        for key, value in self.tensors.items():
            np.testing.assert_array_equal(target[key].numpy(), value.numpy())
        self.assertTrue(loader._metadata_manager.is_metadata_list_empty())
        return loaded

    @parameterized.expand([(False,), (True,)])
    def test_local_restore(self, offload):
        self.assertEqual(self.restore(offload=offload), ['0_0.distcp'])
        self.assertEqual(
            self.restore(offload=offload, fast_resumable_check=False),
            ['0.metadata', '0_0.distcp'],
        )

    def test_directory_saved_to_again(self):
        self.restore()
        self.tensors = {key: value + 1 for key, value in self.tensors.items()}
        dist.save_state_dict(self.tensors, self.path)
        self.assertEqual(self.restore(), ['0_0.distcp'])

    def test_id_0_is_restored_beside_others(self):
        other = {key: value + 1 for key, value in self.tensors.items()}
        dist.save_state_dict(other, self.path, unique_id=9)
        self.assertEqual(self.restore(unique_id=0), ['0_0.distcp'])

    def test_a_reshard_loads_the_metadata(self):
        loaded = []

        def chosen(*args, **kwargs):
            loaded.append(loader._metadata_manager.is_metadata_list_empty())

        for switch, is_empty in ((True, True), (False, False)):
            with mock.patch.object(loader, 'load_state_dict_impl', chosen):
                dist.load_state_dict(
                    {'a': paddle.ones([7])},
                    self.path,
                    fast_resumable_check=switch,
                )
            self.assertEqual(loaded.pop(), is_empty)


if __name__ == '__main__':
    unittest.main()
