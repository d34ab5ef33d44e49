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

import inspect
import os
import tempfile
import unittest
from unittest import mock

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp import load_state_dict as loader
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import (
    make_replicated_sharded_weight,
)
from parameterized import parameterized

PUBLIC = [
    ('load_state_dict', loader.load_state_dict),
    ('load_merged_state_dict', loader.load_merged_state_dict),
    ('merge_sharded_state_dict', loader.merge_sharded_state_dict),
]


class LoadCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, 'checkpoint')
        loader.PATH_TO_CHECKPOINT_FILES.clear()
        loader._metadata_manager.clear()
        self.addCleanup(loader._metadata_manager.clear)
        self.saved = {
            'a': paddle.arange(2.0**21).reshape([512, 4096]),
            'b': paddle.to_tensor(3.0),
        }

    def save(self, **options):
        dist.save_state_dict(self.saved, self.path, **options)

    def zeros(self):
        return {key: paddle.zeros_like(t) for key, t in self.saved.items()}

    def num_workers_seen(self, function, *args, **options):
        """-> {data file: the num_workers it was loaded with}."""
        seen, load = {}, paddle.load

        def load_file(path, **configs):
            if not path.endswith('.metadata'):
                seen[os.path.basename(path)] = configs.get('num_workers')
            return load(path, **configs)

        with (
            mock.patch.object(paddle, 'load', load_file),
            # A tree may have no other way to restore.
            mock.patch.object(
                loader, '_restore_in_place', return_value=False, create=True
            ),
        ):
            self.result = function(*args, **options)
        return seen

    def reshard(self, target, **options):
        """All of a reshard but its last step, which needs a GPU."""
        with (
            mock.patch.object(loader, '_load_state_dict'),
            mock.patch.object(
                loader, 'check_resumable_locally', return_value=False
            ),
            # A tree may have no other check.
            mock.patch.object(
                loader, '_resumable_locally', return_value=False, create=True
            ),
        ):
            return self.num_workers_seen(
                dist.load_state_dict, target, self.path, **options
            )


class TestParameter(LoadCase):
    @parameterized.expand(PUBLIC)
    def test_is_explicit(self, _, function):
        parameters = inspect.signature(function).parameters
        self.assertEqual(parameters['num_workers'].default, 1)

    def test_order_of_the_older_parameters(self):
        names = list(inspect.signature(dist.load_state_dict).parameters)
        self.assertEqual(
            names.index('num_workers'), names.index('comm_method') + 1
        )
        self.assertEqual(names[:2], ['state_dict', 'path'])

    @parameterized.expand([(value,) for value in (True, 2.0, '4', [4])])
    def test_wrong_type(self, value):
        self.save()
        for function in (dist.load_state_dict, dist.load_merged_state_dict):
            first = (self.zeros(),) if function is dist.load_state_dict else ()
            with self.assertRaisesRegex(TypeError, 'num_workers'):
                function(*first, self.path, num_workers=value)

    def test_negative(self):
        self.save()
        with self.assertRaisesRegex(ValueError, 'num_workers'):
            dist.load_state_dict(self.zeros(), self.path, num_workers=-1)


class TestEveryDataFile(LoadCase):
    @parameterized.expand(
        [
            (f'{num_workers}_{offload}', num_workers, offload)
            for num_workers in (None, 0, 1, 2, 8)
            for offload in (False, True)
        ]
    )
    def test_local_restore(self, _, num_workers, offload):
        self.save()
        target = self.zeros()
        seen = self.num_workers_seen(
            dist.load_state_dict,
            target,
            self.path,
            offload=offload,
            num_workers=num_workers,
        )
        self.assertEqual(seen, {'0_0.distcp': num_workers or 1})
        for key, value in self.saved.items():
            np.testing.assert_array_equal(target[key].numpy(), value.numpy())

    @parameterized.expand([(False,), (True,)])
    def test_reshard(self, offload):
        self.save()
        target = self.zeros()
        for num_workers in (1, 8):
            seen = self.reshard(
                target, offload=offload, num_workers=num_workers
            )
            self.assertEqual(seen, {'0_0.distcp': num_workers})

    def test_reshard_of_sharded_weights(self):
        self.save()
        target = {
            key: make_replicated_sharded_weight(key, value)
            for key, value in self.zeros().items()
        }
        seen = self.reshard(target, num_workers=8)
        self.assertEqual(seen, {'0_0.distcp': 8})

    def test_aoa(self):
        self.save()
        target = {
            'renamed': make_replicated_sharded_weight(
                'renamed', paddle.zeros([512, 4096])
            )
        }
        seen = self.reshard(
            target,
            aoa_config={'aoa_statements': ['a -> renamed', 'b -> _']},
            num_workers=8,
        )
        self.assertEqual(seen, {'0_0.distcp': 8})

    def test_safetensors(self):
        self.save(safetensors=True)
        seen = self.reshard(self.zeros(), safetensors=True, num_workers=8)
        self.assertEqual(seen, {'0_0.safetensors': 8})

    def test_merged(self):
        self.save()
        seen = self.num_workers_seen(
            dist.load_merged_state_dict, self.path, num_workers=8
        )
        self.assertEqual(seen, {'0_0.distcp': 8})
        for key, value in self.saved.items():
            np.testing.assert_array_equal(
                self.result[key].numpy(), value.numpy()
            )

    def test_merged_to_safetensors(self):
        self.saved.pop('b')
        self.save()
        with mock.patch.object(
            loader, 'load_state_dict', wraps=loader.load_state_dict
        ) as load:
            loader.merge_sharded_state_dict(
                self.path, self.path + '_merged', num_workers=8
            )
        self.assertEqual(load.call_args.kwargs['num_workers'], 8)
        self.assertIn(
            'model-00001-of-00001.safetensors',
            os.listdir(self.path + '_merged'),
        )


if __name__ == '__main__':
    unittest.main()
