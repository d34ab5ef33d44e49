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

import paddle

from .fast_resumable import check_resumable_locally_fast
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

    After an answer of the fast check the metadata manager is empty, and a
    reshard loads the metadata when it comes to need it; what an earlier load
    that failed may have left there would be taken for this checkpoint's.

    Args:
        path (str): The directory of the checkpoint.
        metadata_file (str): Path of its metadata file.
        state_dict (dict): What is to be restored.
        use_dist (bool): Whether more than one rank restores.
        process_group (Group|None): The ranks that restore; None for all.
        fast_resumable_check (bool): Whether to try the fast check before the
            one that loads the whole metadata.

    Returns:
        bool: The same on all ranks.
    """
    if fast_resumable_check:
        resumable = check_resumable_locally_fast(
            metadata_file, path, state_dict, use_dist, process_group
        )
        if resumable is not None:
            _metadata_manager.clear()
            return resumable
    _metadata_manager.set_metadata_list([paddle.load(metadata_file)])
    return check_resumable_locally(
        path, state_dict, _metadata_manager, use_dist, process_group
    )
