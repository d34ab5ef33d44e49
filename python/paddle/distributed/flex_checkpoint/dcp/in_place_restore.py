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
"""Restore tensors from the rank's own ``.distcp`` file, read into their memory.

The general way loads the whole file, converts it to Tensors and assigns those:
two copies at the peak, three with offload. Here the file is first walked with
stand-ins, which tells where each payload lies (``distcp_reader``); every tensor
of the state dict is then matched with what the file holds, before anything is
written; and the payloads are read, in parallel, straight to where the tensors
are. Tensors for which that is not possible (another place, dtype, shape or
layout, memory shared with another tensor, payloads inside frames) are assigned
one by one afterwards, as the general way does it. Memory is needed for what the
file holds of those, and for no more.

Not here: whether a local restore is right (``fast_resumable``), and reading
itself (``paddle.framework.io_utils``).
"""

from __future__ import annotations

import collections
import os
import sys
import time
from typing import NamedTuple

import numpy as np
import paddle
from paddle.distributed.fleet.utils.log_util import logger
from paddle.framework.io_utils import (
    _is_regular,
    _ParallelPayloads,
    _raise_signalled,
    _read_at,
    _ReadFault,
    _resolve_num_workers,
)

from .distcp_reader import DistcpFormatError, _Blob, _stand_ins
from .sharded_weight import ShardedWeight

# The dtypes of Tensors, and as what their bytes stand in a file.
_STORED_CODES = {
    paddle.bool: 'b1',
    paddle.int8: 'i1',
    paddle.int16: 'i2',
    paddle.int32: 'i4',
    paddle.int64: 'i8',
    paddle.uint8: 'u1',
    paddle.bfloat16: 'u2',
    paddle.float16: 'f2',
    paddle.float32: 'f4',
    paddle.float64: 'f8',
    paddle.complex64: 'c8',
    paddle.complex128: 'c16',
}

# What becomes a Tensor in the general way, which fails if the file holds more.
_CONVERTED_CODES = frozenset(_STORED_CODES.values())

# Protocol 2 has no bytes: its payloads are text, encoded on loading.
_PROTOCOLS = (b'\x80\x03', b'\x80\x04', b'\x80\x05')


class _Declined(Exception):
    """The general way is to restore the state dict; nothing was written."""


class _Restored(NamedTuple):
    """A tensor of the state dict and what the file holds for it."""

    key: str
    tensor: paddle.Tensor
    stored: object

    @property
    def payload(self):
        """The payload of 64 KiB or more that is stored, or None."""
        return getattr(self.stored.data, 'payload', None)


class _Plan(NamedTuple):
    """How each tensor is restored.

    Attributes:
        payloads (list[_Payload]): What is read, in file order.
        direct (dict[_Payload, _Restored]): Tensors that are read into.
        superseded (list[_Restored]): Tensors with the memory of a direct one
            that comes later.
        assigned (list[_Restored]): Tensors that go the general way, in order.
    """

    payloads: list
    direct: dict
    superseded: list
    assigned: list


# ---- match: which tensors, and what the file holds for them


def _local_tensor(value):
    """The tensor to overwrite for a value of the state dict; None for none."""
    if isinstance(value, ShardedWeight):
        return value.local_tensor
    if not value._is_initialized():
        return None
    return value._local_value() if value.is_dist() else value


def _match(state_dict, stored_tensors):
    """Pair all that is to be restored with what the file holds."""
    pairs = []
    for key, value in state_dict.items():
        tensor = _local_tensor(value)
        if tensor is None:
            continue
        # As the general way puts it, which finds out half-way through.
        assert key in stored_tensors, f"{key} is not in source_state_dict."
        if not tensor.is_dense():
            raise _Declined(f'{key!r} is not a dense tensor')
        pairs.append(_Restored(key, tensor, stored_tensors[key]))
    return pairs


def _check_stored(stored_tensors, names):
    """Decline what the general way refuses, or what it alone can read."""
    if names is not None and (
        type(names) is not dict
        or names.keys() != stored_tensors.keys()
        or not all(
            isinstance(name, (str, type(None))) for name in names.values()
        )
    ):
        raise _Declined('its table of names is not of its tensors')
    if 'UnpackBigParamInfor@@' in stored_tensors:
        raise _Declined('it may hold tensors that were split')
    for key, stored in stored_tensors.items():
        if stored.dtype.code not in _CONVERTED_CODES:
            raise _Declined(f'{key!r} has the dtype {stored.dtype.code}')
        if type(stored.data) is _Blob and stored.data.payload is None:
            raise _Declined(f'the payload of {key!r} is text')
        if stored.is_fortran and len(stored.shape) > 2:
            # Protocol 5 permutes axes; here it is not known how.
            raise _Declined(f'the axes of {key!r} may be permuted')


# ---- plan: what is read to where


def _memory_range(pair):
    """Where the memory that a restore may write to begins and ends."""
    tensor = pair.tensor
    address = start = end = tensor.data_ptr()
    if tensor._is_initialized():
        item_bytes = tensor.element_size()
        end += item_bytes
        for size, stride in zip(tensor.shape, tensor.strides):
            reach_bytes = (size - 1) * stride * item_bytes
            start += min(reach_bytes, 0)
            end += max(reach_bytes, 0)
    # A larger value goes past the end of a view, into the memory behind it.
    return start, max(end, address + len(pair.stored.data))


def _group_by_memory(pairs):
    """Ranges and indices of pairs, in groups that share no memory."""
    groups, group_end = [], 0
    for start, end, index in sorted(
        (*_memory_range(pair), index) for index, pair in enumerate(pairs)
    ):
        if not groups or start >= group_end:
            groups.append([])
        groups[-1].append((start, end, index))
        group_end = max(group_end, end)
    return groups


def _has_its_place(pair):
    """Whether a tensor's memory looks just as its payload does."""
    tensor, stored = pair.tensor, pair.stored
    return (
        pair.payload is not None
        and not stored.is_fortran
        and tensor._is_initialized()
        and tensor.place.is_cpu_place()
        and tensor.layout == 'NCHW'
        and _STORED_CODES.get(tensor.dtype) == stored.dtype.code
        and tuple(tensor.shape) == stored.shape
        and tensor.is_contiguous()
    )


def _plan(pairs):
    """Decide for each tensor how it is restored.

    Of tensors that share memory, the one that is restored last decides, so
    these are assigned in order. Where all of them have the very same memory,
    as tied weights do, the last one is enough.
    """
    uses = collections.Counter(pair.payload for pair in pairs)
    direct, superseded, assigned = {}, [], []
    for group in _group_by_memory(pairs):
        indices = [index for _, _, index in group]
        *earlier, last = (pairs[index] for index in indices)
        if (
            len({(start, end) for start, end, _ in group}) == 1
            and all(map(_has_its_place, (*earlier, last)))
            and uses[last.payload] == 1
        ):
            direct[last.payload] = last
            superseded += earlier
        else:
            assigned += indices
    assigned = [pairs[index] for index in sorted(assigned)]
    payloads = {*direct, *(pair.payload for pair in assigned)} - {None}
    return _Plan(sorted(payloads), direct, superseded, assigned)


def _plan_restore(path, fd, state_dict):
    """Check all that can be told beforehand, and plan the restore."""
    if sys.implementation.name != 'cpython' or not hasattr(os, 'preadv'):
        raise _Declined('this platform has no parallel path')
    if not paddle.in_dynamic_mode():
        raise _Declined('the mode is static')
    if _read_at(fd, 0, 2) not in _PROTOCOLS:
        raise _Declined('it is not a pickle of protocol 3, 4 or 5')
    stored_tensors, names, _ = _stand_ins(fd, path)
    _check_stored(stored_tensors, names)
    return _plan(_match(state_dict, stored_tensors))


# ---- read, and assign the rest


def _read_payloads(fd, plan, num_workers):
    """Read payloads into tensors, those of no tensor into buffers.

    Args:
        fd (int): The open file.
        plan (_Plan): What to read.
        num_workers (int): The most threads to read with.

    Returns:
        dict[_Payload, np.ndarray]: The buffers.

    Raises:
        _ReadFault: names the tensors that may have been written to.
    """
    if not plan.payloads:
        return {}
    try:
        buffers = {
            payload: np.empty(payload.length_bytes, 'u1')
            for payload in plan.payloads
            if payload not in plan.direct
        }
    except MemoryError as error:
        raise _Declined(str(error)) from error
    targets = [
        (plan.direct[payload].tensor, plan.direct[payload].tensor.data_ptr())
        if payload in plan.direct
        else (buffers[payload], buffers[payload].ctypes.data)
        for payload in plan.payloads
    ]
    reader = _ParallelPayloads(fd, plan.payloads, num_workers, targets)
    try:
        with reader, reader:
            reader.start()
            for _ in plan.payloads:
                reader.take()
    except Exception as error:
        what = str(error)
        if not isinstance(error, _ReadFault):
            what = f'{type(error).__name__}: {what}'
        keys = [pair.key for pair in _touched(plan, reader)]
        raise _ReadFault(
            f'{what}; overwritten already, in part or whole: '
            f'{", ".join(keys) or "no tensor"}'
        ) from error
    finally:
        for pair in _touched(plan, reader):
            pair.tensor._bump_inplace_version()
    return buffers


def _touched(plan, reader):
    """The tensors to which bytes may have been read."""
    payloads = [plan.payloads[index] for index in sorted(reader.touched)]
    return [plan.direct[p] for p in payloads if p in plan.direct]


def _assign(pair, buffers):
    """Assign a tensor the general way, from bytes of the file."""
    stored = pair.stored
    data = stored.data if pair.payload is None else buffers[pair.payload]
    array = np.frombuffer(data, stored.dtype.code).reshape(
        stored.shape, order='F' if stored.is_fortran else 'C'
    )
    source = paddle.to_tensor(array).to(pair.tensor.place)
    paddle.assign(source, pair.tensor)


def _restore_in_place(state_dict, path, use_dist, num_workers):
    """Restore a state dict from the rank's own file, if that can be done here.

    Args:
        state_dict (dict): What is to be restored; its tensors are overwritten.
        path (str): The directory of the checkpoint.
        use_dist (bool): Whether more than one rank restores.
        num_workers (int|None): The most threads to read with; with None, 0
            and 1 nothing is done here.

    Returns:
        bool: False where the general way has to restore the state dict, all
        of it: nothing has been written, or a warning said to which tensors.

    Raises:
        AssertionError: the file lacks a key; nothing has been written.
    """
    num_workers = _resolve_num_workers(num_workers)
    if num_workers == 1:
        return False
    rank = paddle.distributed.get_rank() if use_dist else 0
    file_path = os.path.join(path, f'{rank}_0.distcp')
    started_s = time.perf_counter()
    try:
        if not _is_regular(file_path):  # opening a pipe would wait
            raise _Declined('it is not a regular file')
        with open(file_path, 'rb', buffering=0) as f:
            plan = _plan_restore(file_path, f.fileno(), state_dict)
            buffers = _read_payloads(f.fileno(), plan, num_workers)
    except (OSError, DistcpFormatError, _Declined) as reason:
        _raise_signalled(reason)
        logger.debug(f'{file_path} is restored the general way: {reason}.')
        return False
    except _ReadFault as fault:
        _raise_signalled(fault)
        logger.warning(
            f'{file_path} could not be read with num_workers={num_workers} '
            f'({fault}); it is loaded the general way.'
        )
        return False
    for pair in plan.superseded:
        pair.tensor._bump_inplace_version()
    for pair in plan.assigned:
        _assign(pair, buffers)
    count = len(plan.direct) + len(plan.superseded)
    elapsed_s = time.perf_counter() - started_s
    logger.info(
        f'{file_path}: restored {count} of {count + len(plan.assigned)} '
        f'tensors in place in {elapsed_s:.3f} s.'
    )
    return True
