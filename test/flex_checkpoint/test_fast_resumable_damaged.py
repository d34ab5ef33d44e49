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
import pickle
import random
import unittest
from dataclasses import replace
from unittest import mock

import numpy as np
import paddle
from fast_resumable_case import (
    SEED,
    CheckpointTest,
    logged,
    metadata_of,
    shard,
)
from paddle.distributed.flex_checkpoint.dcp import fast_resumable
from paddle.distributed.flex_checkpoint.dcp.fast_resumable import (
    is_unsharded_state_dict_metadata,
)
from paddle.distributed.flex_checkpoint.dcp.metadata import Metadata
from parameterized import parameterized

FIELDS = ('state_dict_metadata', 'storage_metadata', 'flat_mapping')
OLDER_MODULE = b'paddle.distributed.checkpoint.metadata'


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
        with logged() as info:
            self.fast(self.tensors)
        self.assertEqual(info.call_args[0][0].count(self.data_path()), 1)
        self.check_log(self.tensors, False, 'not resumable', *words)
        self.check_log(self.tensors, False, 'not resumable', *words, rank=0)
        self.assertEqual(self.gathered, [False])

    def check_warnings(self, count):
        """A file that is not what was saved is worth one, another rank's not."""
        with mock.patch.object(fast_resumable.logger, 'warning') as warning:
            self.fast(self.tensors)
        self.assertEqual(warning.call_count, count)

    def test_damaged(self):
        for length in (0, 1, 100, len(self.data) // 2, len(self.data) - 1):
            with open(self.data_path(), 'wb') as f:
                f.write(self.data[:length])
            self.check_false(f'{self.data_path()} is unreadable: ')
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
                self.check_false('unreadable', error.args[-1])

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
        self.check_warnings(1)

    def test_holds_other_shapes(self):
        self.dump({'a': np.ones((3, 2)), 'b': np.ones((300, 200))},
                  self.data_path())  # fmt: skip
        self.check_false("'a'", 'shape (2, 3)', 'file has (3, 2).')
        self.check_warnings(1)
        self.dump({'a': np.ones((2, 3))}, self.data_path())
        self.check_false("'b'", 'missing in the file')
        self.check_warnings(0)
        self.dump({}, self.data_path())
        self.check_false("'a'", 'missing in the file; 1 other as well')


if __name__ == '__main__':
    unittest.main()
