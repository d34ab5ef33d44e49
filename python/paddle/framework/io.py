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

from __future__ import annotations

import collections
import gc
import sys
import weakref
from typing import TYPE_CHECKING

import numpy as np
import paddle
from paddle.base import core
from paddle.base.framework import _current_expected_place_, in_dygraph_mode

# Used where the wiring puts calls of them.
from .io_utils import _load_pickle, _resolve_num_workers  # noqa: F401

if TYPE_CHECKING:
    from typing import TypedDict

    from typing_extensions import NotRequired

    class _LoadOptions(TypedDict):
        safetensors: NotRequired[bool]
        num_workers: NotRequired[int | None]


# Arrays under this size are copied as ever: the copy takes no longer than
# finding out that it can be spared.
_MIN_ADOPTED_BYTES = 64 * 1024

# What a Tensor can hold (bfloat16 travels as uint16); numpy has more.
_ADOPTED_DTYPES = frozenset(
    (
        *('bool', 'int8', 'int16', 'int32', 'int64', 'uint8', 'uint16'),
        *('float16', 'float32', 'float64', 'complex64', 'complex128'),
    )
)

# Where upstream puts a Tensor in the place of an array.
_CONVERTED_IN_PLACE = (dict, collections.OrderedDict, list)


def _reference_counts(objects):
    """Pairs of an object and how often it is referred to, here included."""
    return [(item, sys.getrefcount(item)) for item in objects]


def _reference_counts_in(container_items):
    """The same of what a container holds, without arrays that are small."""
    return [
        (item, sys.getrefcount(item))
        for item in container_items
        if type(item) is not np.ndarray or item.nbytes >= _MIN_ADOPTED_BYTES
    ]


def _owners(held):
    """What keeps the memory of an array, the payload last."""
    if type(held) is np.ndarray:
        return [held.base, *_owners(held.base)]
    if isinstance(held, memoryview):  # numpy's, of a bytearray
        # Memoryviews of one object may share the buffer between.
        return [*gc.get_referents(held), held.obj]
    return []


def _is_sole_owner(array, sole):
    """Whether no other way leads to the payload below an array.

    Args:
        array (np.ndarray): Found in the loaded value.
        sole (int): The references to what only its place in the value holds,
            counted there.
    """
    owners = _owners(array)
    return (
        type(owners[-1]) in (bytes, bytearray)
        and len(owners[-1]) == array.nbytes
        and not any(map(weakref.getweakrefcount, [array, *owners]))
        # Here the list of owners holds them too, hence one more.
        and all(count <= sole + 1 for _, count in _reference_counts(owners))
    )


def _is_adoptable(array):
    return (
        type(array) is np.ndarray
        and array.nbytes >= _MIN_ADOPTED_BYTES
        and array.flags.carray  # in C order, aligned and writeable
        and array.dtype.isnative
        and array.dtype.name in _ADOPTED_DTYPES
    )


def _adoptable_arrays(holder):
    """The arrays of a loaded value whose memory a Tensor may have, by id.

    Copying an array into a Tensor takes half the time of a load, and its memory
    once more. It can be spared where nobody else could see that the memory is
    shared: where neither the array, nor the payload below it, nor a tuple
    around it is referred to from anywhere but its place in the value. A list
    or a dict may be, for it gets the Tensor in the array's place.

    Args:
        holder (list): The loaded value, held by nothing else for the load.
    """
    # One reference is the list's, the other the place of finding.
    _, sole = _reference_counts_in([object()])[0]
    found, pending, seen = [], [holder], set()
    while pending:
        item = pending.pop()
        if isinstance(item, np.ndarray):
            if _is_adoptable(item):
                found.append(item)
        elif type(item) in (*_CONVERTED_IN_PLACE, tuple):
            if id(item) in seen:
                continue
            seen.add(id(item))
            items = item.values() if isinstance(item, dict) else item
            pending += [
                inner
                for inner, count in _reference_counts_in(items)
                if count <= sole or type(inner) in _CONVERTED_IN_PLACE
            ]
    return {id(array): array for array in found if _is_sole_owner(array, sole)}


def _note_adoptable(value, config):
    """Note in `config` which arrays need no copy; gives `value` back.

    A serial load stays as it was: all its arrays are copied. So are those of
    a load that is traced or profiled, for who looks at frames holds what is
    in them, and references could not be told apart.
    """
    holder = [value]
    del value  # it would count
    if (
        config.num_workers > 1
        and not config.return_numpy
        and in_dygraph_mode()
        and isinstance(_current_expected_place_(), core.CPUPlace)
        and sys.gettrace() is None
        and sys.getprofile() is None
    ):
        config.adoptable = _adoptable_arrays(holder)
    return holder[0]


def _array_to_tensor(array, adoptable):
    """What `paddle.to_tensor` gives, with the array's own memory if it may."""
    if id(array) not in adoptable:
        return paddle.to_tensor(array)
    return core.eager.Tensor(
        value=array,
        place=core.CPUPlace(),
        persistable=False,
        zero_copy=True,
        name=None,
        stop_gradient=True,
    )
