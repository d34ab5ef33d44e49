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

import json
import os
import sys
import unittest
from unittest import mock

import paddle
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp import (
    in_place_restore,
)
from paddle.distributed.flex_checkpoint.dcp import (
    load_state_dict as loader,
)
from ranks_case import RanksCase

# A launch takes 5 s on two cores; what hangs is ended, not waited for.
LIMIT_S = 120
SHAPES = {'large': (300, 400), 'tied': (500, 100), 'small': (2, 3)}


def tensors(value):
    state_dict = {k: paddle.full(s, value) for k, s in SHAPES.items()}
    return {**state_dict, 'alias': state_dict['tied']}


def restore(path, fast, is_broken):
    """Restore; -> what this rank sees of it."""
    target = tensors(0.0)
    addresses = [tensor.data_ptr() for tensor in target.values()]
    in_place, loaded = [], []
    restore_in_place, load = loader._restore_in_place, paddle.load

    def note_answer(*args):
        in_place.append(restore_in_place(*args))
        return in_place[-1]

    def note_file(file_path, **options):
        loaded.append(os.path.basename(file_path))
        return load(file_path, **options)

    read_fault = (
        mock.patch.object(
            in_place_restore._ParallelPayloads,
            'take',
            side_effect=in_place_restore._ReadFault('broken'),
        )
        if is_broken
        else mock.MagicMock()
    )
    with (
        mock.patch.object(loader, '_restore_in_place', note_answer),
        mock.patch.object(paddle, 'load', note_file),
        read_fault,
    ):
        dist.load_state_dict(
            target, path, num_workers=4, fast_resumable_check=fast
        )
    return {
        'in_place': in_place,
        'loaded': loaded,
        'moved': addresses != [t.data_ptr() for t in target.values()],
        'values': sorted(
            {v for t in target.values() for v in t.unique().tolist()}
        ),
    }


def run_rank(folder):
    dist.init_parallel_env()
    rank = dist.get_rank()
    path = os.path.join(folder, 'checkpoint')
    dist.save_state_dict(tensors(rank + 1.0), path, save_replicas=True)
    dist.barrier()
    results = {
        f'{fast} {broken_rank}': restore(path, fast, rank == broken_rank)
        for fast in (True, False)
        for broken_rank in (None, 1)
    }
    with open(os.path.join(folder, f'{rank}.json'), 'w') as f:
        json.dump(results, f)


class TestTwoRanks(RanksCase):
    def test_each_rank_restores_its_own(self):
        status, output = self.launch(2, __file__, self.folder, limit_s=LIMIT_S)
        self.assertEqual(status, 0, output[-5000:])
        results = []
        for rank in (0, 1):
            with open(os.path.join(self.folder, f'{rank}.json')) as f:
                results.append(json.load(f))
        self.assertEqual(len(results[0]), 4)
        for rank, result in enumerate(results):
            for label, outcome in result.items():
                with self.subTest(rank=rank, case=label):
                    fast, broken_rank = label.split()
                    is_broken = broken_rank == str(rank)
                    self.assertEqual(outcome['in_place'], [not is_broken])
                    self.assertEqual(
                        outcome['loaded'],
                        ['0.metadata'] * (fast == 'False')
                        + [f'{rank}_0.distcp'] * is_broken,
                    )
                    self.assertFalse(outcome['moved'])
                    self.assertEqual(outcome['values'], [rank + 1.0])


if __name__ == '__main__':
    if len(sys.argv) == 2 and os.path.isdir(sys.argv[1]):
        run_rank(sys.argv[1])
    else:
        unittest.main()
