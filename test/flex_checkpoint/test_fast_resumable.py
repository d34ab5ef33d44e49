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

import os
import unittest
from dataclasses import replace

import numpy as np
import paddle
import paddle.distributed as dist
from fast_resumable_case import (
    MANY_RANKS,
    CheckpointTest,
    metadata_of,
    shard,
)
from paddle.distributed.flex_checkpoint.dcp.metadata import LocalTensorIndex
from paddle.distributed.flex_checkpoint.dcp.save_state_dict import (
    balanced_dedup_key_in_dict,
)
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import (
    ShardedWeight,
    make_replicated_sharded_weight,
)
from parameterized import parameterized

FIELDS = ('state_dict_metadata', 'storage_metadata', 'flat_mapping')
DTYPES = [
    'bool', 'int8', 'int16', 'int32', 'int64', 'uint8', 'bfloat16',
    'float16', 'float32', 'float64', 'complex64', 'complex128',
]  # fmt: skip
PROTOCOLS = [(2,), (3,), (4,), (5,)]


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


if __name__ == '__main__':
    unittest.main()
