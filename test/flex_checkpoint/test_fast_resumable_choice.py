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
import unittest
from unittest import mock

import numpy as np
import paddle
import paddle.distributed as dist
from fast_resumable_case import (
    CheckpointTest,
    metadata_of,
)
from paddle.distributed.flex_checkpoint.dcp import fast_resumable
from paddle.distributed.flex_checkpoint.dcp import load_state_dict as loader
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import (
    ShardedWeight,
    make_replicated_sharded_weight,
)
from parameterized import parameterized


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
            "'b'", 'expected shape (5, 6)', 'has (4, 6)', '; 1 other as well',
        )  # fmt: skip
        self.weights['a'] = self.weights['b']
        self.check_log(self.weights, False, "'a'", '; 2 others as well')

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
        for word in ('rank 0: ', 'not resumable locally: rank 1 cannot.'):
            self.assertIn(word, info.call_args[0][0])

    def test_ranks_of_a_group_that_cannot(self):
        group = mock.Mock(ranks=[4, 6, 7, 9])
        for answers, expected in (
            ([True, False, True, True], 'rank 6 cannot'),
            ([True, True, False, False], 'rank 7 and 1 other cannot'),
            ([True, False, False, False], 'rank 6 and 2 others cannot'),
        ):
            self.assertEqual(
                fast_resumable._who_cannot(answers, group), expected
            )

    def test_which_rank_tells(self):
        self.check_log(self.weights, True, "rank 0: '", rank=0)
        self.weights['a'] = paddle.ones([7])
        self.check_log(self.weights, False, "rank 0: '", rank=0)
        os.remove(self.metadata_path)
        self.check_log(self.weights, None, "rank 0: '", rank=0)

    def test_one_collective_of_a_bool(self):
        self.assertIs(self.fast(self.weights, rank=0), True)
        self.assertEqual(self.gathered, [True])
        self.assertIs(self.fast(self.weights, rank=1), False)
        self.assertEqual(self.gathered, [False])
        self.assertIs(self.fast(self.weights), True)
        self.assertEqual(self.gathered, [])


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

    @parameterized.expand([('fast', 0), ('stock', 1), ('off', 1)])
    def test_collector_runs_where_metadata_was_loaded(self, check, runs):
        wanted = {key: paddle.zeros(t.shape) for key, t in self.tensors.items()}
        declines = mock.Mock(return_value=None)
        with (
            mock.patch.object(loader.gc, 'collect') as collect,
            contextlib.ExitStack() as stack,
        ):
            for name in ('fast', 'by_storage') if check == 'stock' else ():
                name = f'check_resumable_locally_{name}'
                stack.enter_context(mock.patch.object(loader, name, declines))
            dist.load_state_dict(
                wanted, self.path, fast_resumable_check=check != 'off'
            )
        self.assertEqual(collect.call_count, runs)
        self.assertTrue(loader._metadata_manager.is_metadata_list_empty())
        self.assertEqual(float(wanted['b']), 3.0)

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
            # What a failed load left behind is not taken for this checkpoint's.
            kept = [
                metadata.state_dict_metadata.keys()
                for metadata in loader._metadata_manager.get_metadata_list()
            ]
            # A reshard needs the metadata, a local restore does not.
            self.assertEqual(self.loaded, [] if expected else ['0.metadata'])
            self.assertEqual(kept, [] if expected else [{'a', 'b'}])

    def test_none_runs_the_stock_check(self):
        for switch, declined in ((True, True), (False, False)):
            with (
                mock.patch.object(
                    loader, 'check_resumable_locally_fast', return_value=None
                ) as fast,
                mock.patch.object(
                    loader,
                    'check_resumable_locally_by_storage',
                    return_value=None,
                ) as by_storage,
            ):
                self.assertIs(self.choose(self.tensors, switch), True)
            self.assertEqual(fast.called, declined)
            self.assertEqual(by_storage.called, declined)
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

    @parameterized.expand([('x',), (1,), (None,), (np.ones(1),)])
    def test_switch_that_is_no_bool(self, switch):
        with (
            mock.patch.object(
                os, 'listdir', side_effect=AssertionError('read')
            ),
            self.assertRaisesRegex(TypeError, 'fast_resumable_check'),
        ):
            dist.load_state_dict(
                self.tensors, self.path, fast_resumable_check=switch
            )

    def test_switch_of_numpy(self):
        self.assertEqual(
            self.restore(fast_resumable_check=np.bool_(False)),
            ['0.metadata', '0_0.distcp'],
        )

    @parameterized.expand([(1,), (2,)])
    def test_load_is_logged(self, num_workers):
        with mock.patch.object(loader.logger, 'info') as info:
            self.restore(num_workers=num_workers)
        told = [call.args[0] for call in info.call_args_list]
        self.assertRegex(
            '; '.join(told), rf'{self.data_path()}: .*restored .* \d\.\d+ s'
        )

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

    def test_a_reshard_finds_the_metadata_loaded_once(self):
        for switch in (True, False):
            with (
                mock.patch.object(loader, 'load_state_dict_impl') as reshard,
                mock.patch.object(paddle, 'load', wraps=paddle.load) as load,
            ):
                reshard.side_effect = lambda **_: self.assertFalse(
                    loader._metadata_manager.is_metadata_list_empty()
                )
                dist.load_state_dict(
                    {'a': paddle.ones([7])},
                    self.path,
                    fast_resumable_check=switch,
                )
            reshard.assert_called_once()
            load.assert_called_once_with(self.metadata_path)


if __name__ == '__main__':
    unittest.main()
