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
"""Choosing between a local restore and a reshard, for `load_state_dict`."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import paddle
from paddle.distributed.fleet.utils.log_util import logger
from paddle.framework.io_utils import _is_regular

from .fast_resumable import (
    check_resumable_locally_by_storage,
    check_resumable_locally_fast,
    own_file,
    wanted_place,
)
from .metadata import LocalTensorIndex
from .rank_failures import failure_told, outcome_shared
from .storage_reader import without_collector
from .utils import check_resumable_locally


def _resumable_locally(
    path,
    metadata_file,
    state_dict,
    use_dist,
    process_group,
    fast_resumable_check,
):
    """Whether every rank restores from its own file, or all of them reshard.

    The manager then holds this checkpoint's metadata if all of them reshard,
    as after the stock check. After a local restore was chosen it may be
    empty; what an earlier load that failed may have left there is not kept.

    Args:
        path (str): The directory of the checkpoint.
        metadata_file (str): Path of its metadata file.
        state_dict (dict): What is to be restored.
        use_dist (bool): Whether more than one rank restores.
        process_group (Group|None): The ranks that restore; None for all.
        fast_resumable_check (bool): Whether to try other checks before the
            stock one, for which the whole metadata is loaded and indexed,
            and to let all ranks fail if one does.

    Returns:
        bool: The same on all ranks.

    Raises:
        RankFailedError: Another rank failed.
    """
    if not fast_resumable_check:
        _load_metadata(metadata_file)
        return check_resumable_locally(
            path, state_dict, _metadata_manager, use_dist, process_group
        )
    _metadata_manager.clear()
    checked = (metadata_file, path, state_dict, use_dist, process_group)
    resumable = check_resumable_locally_fast(*checked)
    if resumable is None:
        resumable = check_resumable_locally_by_storage(*checked)
    if resumable is None:
        with failure_told(path, process_group, use_dist):
            without_collector(_load_metadata, metadata_file)
            _rehearse_stock_check(path, state_dict, use_dist)
        resumable = check_resumable_locally(
            path, state_dict, _metadata_manager, use_dist, process_group
        )
    if not resumable:
        with outcome_shared(
            path, process_group, use_dist, 'this rank could reshard'
        ):
            if _metadata_manager.is_metadata_list_empty():
                without_collector(_load_metadata, metadata_file)
    return resumable


def _rehearse_stock_check(path, state_dict, use_dist):
    """Fail where the stock check would, but without communication."""
    file_name, file_path = own_file(path, use_dist)
    wanted = [(key, wanted_place(value)) for key, value in state_dict.items()]
    if not _is_regular(file_path):
        return
    stored = _metadata_manager.get_file_storage_info().get(file_name, ())
    stored = {replace(index, replica_id=None) for index in stored}
    for key, place in wanted:
        if place is None:
            continue
        if LocalTensorIndex(key, **place._asdict()) not in stored:
            return  # what follows is not looked at


def _log_restored(items, path, use_dist, started_s):
    """Hand on what is restored from the rank's own file; log it at the end.

    Args:
        items (ItemsView): What the loop over the state dict runs over.
        path (str): The directory of the checkpoint.
        use_dist (bool): Whether more than one rank restores.
        started_s (float): `time.perf_counter()` before the file was loaded.
    """
    yield from items
    rank = paddle.distributed.get_rank() if use_dist else 0
    file_path = os.path.join(path, f'{rank}_0.distcp')
    elapsed_s = time.perf_counter() - started_s
    logger.info(
        f'{file_path}: loaded and restored {len(items)} tensors '
        f'in {elapsed_s:.3f} s.'
    )


def _load_metadata(metadata_file):
    _metadata_manager.set_metadata_list([paddle.load(metadata_file)])
