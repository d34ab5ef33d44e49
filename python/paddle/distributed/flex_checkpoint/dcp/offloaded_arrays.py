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
"""Hand loaded arrays to Tensors on the CPU without a second copy.

With ``offload=True`` a data file is loaded as arrays, and each of them is
copied into a Tensor. Where nothing else holds an array that was read in
parallel, the Tensor takes over its memory instead.

Not here: which arrays allow that (``paddle.framework.io``).
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import paddle
from paddle.base.framework import in_dygraph_mode
from paddle.framework.io import _adoptable_arrays, _array_to_tensor
from paddle.framework.io_utils import _resolve_num_workers


class _Adopted(NamedTuple):
    """A Tensor that took over the memory of an array."""

    tensor: paddle.Tensor


def _offloaded_items(arrays, num_workers):
    """The items of a loaded dict, for `_offloaded_tensor`.

    Args:
        arrays (dict): What a data file held. With more than one worker, it is
            emptied on the way, so that the Tensors alone hold their memory.
        num_workers (int|None): With how many threads the file was read.

    Returns:
        Iterable[tuple]: Keys and values, which are `_Adopted` where no copy
        is needed, and what the dict held elsewhere.
    """
    if (
        _resolve_num_workers(num_workers) == 1
        or not in_dygraph_mode()
        # Who looks at frames holds what is in them.
        or sys.gettrace() is not None
        or sys.getprofile() is not None
    ):
        return arrays.items()
    return _adopt(arrays, _adoptable_arrays([arrays]))


def _adopt(arrays, adoptable):
    for key in list(arrays):
        value = arrays.pop(key)
        if id(value) in adoptable:
            value = _Adopted(_array_to_tensor(value, adoptable))
        yield key, value


def _offloaded_tensor(value):
    """The Tensor on the CPU for a value of `_offloaded_items`."""
    if isinstance(value, _Adopted):
        return value.tensor
    return paddle.to_tensor(value, place=paddle.CPUPlace())
