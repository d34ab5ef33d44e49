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
import tempfile
import unittest
from dataclasses import replace
from unittest import mock

import paddle
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp import fast_resumable
from paddle.distributed.flex_checkpoint.dcp import load_state_dict as loader
from paddle.distributed.flex_checkpoint.dcp.fast_resumable import (
    check_resumable_locally_by_storage,
    check_resumable_locally_fast,
)
from paddle.distributed.flex_checkpoint.dcp.metadata import (
    LocalTensorIndex,
    LocalTensorMetadata,
    Metadata,
)
from paddle.distributed.flex_checkpoint.dcp.metadata_manager import (
    MetadataManager,
)
from paddle.distributed.flex_checkpoint.dcp.utils import check_resumable_locally

# Of the damage that is done at random.
SEED = 20261129
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


@contextlib.contextmanager
def logged():
    """Yields what is called for each line, whatever its level."""
    with (
        mock.patch.object(fast_resumable.logger, 'info') as info,
        mock.patch.object(fast_resumable.logger, 'warning', info),
    ):
        yield info


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

    def fast(
        self,
        state_dict,
        rank=None,
        others=True,
        check=check_resumable_locally_fast,
    ):
        with self.one_of_many(rank, others) as gathered:
            answer = check(
                self.metadata_path, self.path, state_dict, rank is not None
            )
        self.gathered = gathered
        return answer

    def by_storage(self, state_dict, rank=None, others=True):
        return self.fast(
            state_dict, rank, others, check_resumable_locally_by_storage
        )

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
        with logged() as info:
            self.assertIs(self.fast(state_dict, rank), expected)
        info.assert_called_once()
        for word in words:
            self.assertIn(word, info.call_args[0][0])
