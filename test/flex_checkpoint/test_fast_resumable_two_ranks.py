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
"""Two ranks on CPU; this file is also the script that each of them runs."""

import collections
import errno
import json
import os
import pickle
import shutil
import sys
import unittest
from unittest import mock

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp import load_state_dict as loader
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight
from ranks_case import RanksCase

# A launch takes 5 s on two cores; what hangs is ended, not waited for.
LIMIT_S = 60
SHAPES = {'small': (2, 3), 'large': (300, 400), 'scalar': ()}
SAVED, DAMAGED = (
    ('replicas', 'deduplicated', 'disjoint', 'split'),
    ('missing', 'truncated', 'directory', 'shape'),
)


# Marks a checkpoint whose data files cannot be loaded.
UNLOADABLE = 'unloadable'


class Rank:
    """What one rank does, and what is seen of it."""

    def __init__(self, folder):
        dist.init_parallel_env()
        self.folder = folder
        self.rank = dist.get_rank()
        self.results = {}

    def path(self, name):
        return os.path.join(self.folder, name)

    def tensors(self, name, value):
        """What this rank saves to, or restores from, a checkpoint."""
        if name == 'split':
            half = paddle.full([2, 3], value)
            return {
                'split': ShardedWeight(
                    'split', half, (2, 3), (4, 3), (2 * self.rank, 0)
                )
            }
        owner = f'{self.rank}.' if name == 'disjoint' else ''
        return {
            owner + key: paddle.full(shape, value)
            for key, shape in SHAPES.items()
        }

    def save_all(self):
        for name in SAVED:
            dist.save_state_dict(
                self.tensors(name, self.rank + 1.0),
                self.path(name),
                save_replicas=name == 'replicas',
            )
        dist.barrier()

    def damage_copies(self):
        """Copies of the first checkpoint in which rank 1's file is bad."""
        if self.rank == 0:
            for name in DAMAGED:
                shutil.copytree(self.path('replicas'), self.path(name))
            bad = {
                name: os.path.join(self.path(name), '1_0.distcp')
                for name in DAMAGED
            }
            os.remove(bad['missing'])
            os.truncate(bad['truncated'], os.path.getsize(bad['truncated']) - 9)
            os.remove(bad['directory'])
            os.mkdir(bad['directory'])
            with open(bad['shape'], 'wb') as f:
                arrays = {key: np.ones(7, 'f4') for key in SHAPES}
                pickle.dump(arrays, f, 4)
        dist.barrier()

    def load(self, label, name, path, fast):
        """Load; a reshard needs a GPU and is only seen to be chosen."""
        target = self.tensors(name, 0.0)
        collectives, loaded, chosen = [], [], ['local']
        gather, load = dist.all_gather_object, paddle.load

        def gather_object(gathered, value, group=None):
            collectives.append(type(value).__name__)
            gather(gathered, value, group)

        def load_file(file_path, **options):
            loaded.append(os.path.basename(file_path))
            marker = os.path.join(os.path.dirname(file_path), UNLOADABLE)
            if file_path.endswith('.distcp') and os.path.exists(marker):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return load(file_path, **options)

        def reshard(**options):
            chosen[0] = 'reshard'

        error = None
        with (
            mock.patch.object(dist, 'all_gather_object', gather_object),
            mock.patch.object(paddle, 'load', load_file),
            mock.patch.object(loader, 'load_state_dict_impl', reshard),
            # Both end a reshard of sharded weights, which takes a GPU too.
            mock.patch.object(loader, '_finish_unflatten'),
        ):
            try:
                dist.load_state_dict(target, path, fast_resumable_check=fast)
            except Exception as raised:
                error = f'{type(raised).__name__}: {raised}'
        values = {
            float(value)
            for tensor in target.values()
            for value in np.unique(getattr(tensor, 'local_tensor', tensor))
        }
        self.results[label] = {
            'chosen': chosen[0],
            'values': sorted(values),
            'collectives': collectives,
            'loaded': loaded,
            'error': error,
        }

    def alone(self, name, change):
        """A path that is this rank's own: rank 1 has something else there."""
        path = self.path(f'{name}_{self.rank}')
        shutil.copytree(self.path('replicas'), path)
        if self.rank == 1:
            change(path)
        dist.barrier()
        return path

    def run_all(self):
        self.save_all()
        self.damage_copies()
        for fast in (True, False):
            for name in SAVED:
                label = f'{name} {fast}'
                self.load(label, name, self.path(name), fast)
        for name in DAMAGED:
            self.load(name, name, self.path(name), True)
        for name in ('missing', 'directory'):
            self.load(f'{name} stock', name, self.path(name), False)
        self.load(
            'declines',
            'replicas',
            self.alone('declines', add_foreign_field),
            True,
        )
        for name, change in FAILURES.items():
            self.load(name, 'replicas', self.alone(name, change), True)
        with open(self.path(f'{self.rank}.json'), 'w') as f:
            json.dump(self.results, f)


def add_foreign_field(path):
    """The same metadata, but with a class that the partial reader refuses."""
    metadata_path = os.path.join(path, '0.metadata')
    metadata = paddle.load(metadata_path)
    metadata.note = collections.OrderedDict()
    with open(metadata_path, 'wb') as f:
        pickle.dump(metadata, f, 4)


def remove_metadata(path):
    os.remove(os.path.join(path, '0.metadata'))


def truncate_metadata(path):
    metadata_path = os.path.join(path, '0.metadata')
    os.truncate(metadata_path, os.path.getsize(metadata_path) - 5)


def forbid_load(path):
    """The data file passes the check, and cannot be loaded."""
    with open(os.path.join(path, UNLOADABLE), 'w'):
        pass


# What is wrong with rank 1's files, so that all ranks fail.
FAILURES = {
    'folder missing': shutil.rmtree,
    'metadata missing': remove_metadata,
    'metadata truncated': truncate_metadata,
    'data unloadable': forbid_load,
}


class TestTwoRanks(RanksCase):
    def test_all_ranks_come_to_the_same(self):
        status, output = self.launch(2, __file__, self.folder, limit_s=LIMIT_S)
        self.assertEqual(status, 0, output[-5000:])
        results = []
        for rank in (0, 1):
            with open(os.path.join(self.folder, f'{rank}.json')) as f:
                results.append(json.load(f))
        local = {
            *('replicas True', 'replicas False'),
            *('disjoint True', 'disjoint False'),
            *('split True', 'split False', 'declines'),
        }
        self.assertLess(local, results[0].keys())
        for label in results[0].keys() - FAILURES.keys():
            with self.subTest(label):
                self.check_outcome(
                    [result[label] for result in results],
                    'local' if label in local else 'reshard',
                    not label.endswith(('False', 'stock')),
                )
        # Which answers needed no metadata, and which did.
        for label in ('replicas True', 'disjoint True', 'split True'):
            for rank in (0, 1):
                self.assertEqual(
                    results[rank][label]['loaded'], [f'{rank}_0.distcp'], label
                )
        for rank, result in enumerate(results):
            for label in ('replicas False', 'split False'):
                self.assertEqual(
                    result[label]['loaded'],
                    ['0.metadata', f'{rank}_0.distcp'],
                    label,
                )
        self.assertNotIn('0.metadata', results[0]['declines']['loaded'])
        self.assertIn('0.metadata', results[1]['declines']['loaded'])
        self.assertIn('is resumable locally', output)
        self.assertIn('not resumable locally', output)
        for label in FAILURES:
            with self.subTest(label):
                self.check_failure(label, [result[label] for result in results])

    def check_outcome(self, ranks, expected, is_fast):
        for rank, outcome in enumerate(ranks):
            self.assertIsNone(outcome['error'])
            self.assertEqual(outcome['chosen'], expected)
            # Same collectives in the same order, and one bool among them.
            self.assertEqual(outcome['collectives'], ranks[0]['collectives'])
            self.assertEqual(outcome['collectives'].count('bool'), 1)
            if expected == 'local':
                self.assertEqual(outcome['values'], [rank + 1.0])
                self.assertEqual(
                    outcome['collectives'], ['bool'] + ['NoneType'] * is_fast
                )

    def check_failure(self, label, ranks):
        """Rank 1 raises what is wrong there, rank 0 who failed and how."""
        told, own = (outcome['error'] for outcome in ranks)
        self.assertRegex(own, '^(?!RankFailedError)')
        self.assertRegex(told, '^RankFailedError: .*rank 1 failed to load')
        self.assertIn(own, told)
        self.assertIn(f'{label}_1', told)
        is_late = label == 'data unloadable'
        self.assertEqual(
            [outcome['values'] for outcome in ranks],
            [[float(is_late)], [0.0]],
        )
        self.assertEqual(
            [outcome['collectives'] for outcome in ranks],
            [['bool', 'NoneType'], ['bool', 'str']]
            if is_late
            else [['bool'], ['_Failure']],
        )


if __name__ == '__main__':
    if len(sys.argv) == 2 and os.path.isdir(sys.argv[1]):
        Rank(sys.argv[1]).run_all()
    else:
        unittest.main()
