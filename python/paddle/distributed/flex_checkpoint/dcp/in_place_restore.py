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
three copies at the peak. Here the file is first walked with stand-ins, which
tells where each payload lies (``distcp_reader``); every tensor of the state
dict is then matched with what the file holds, before anything is written; and
the payloads are read, in parallel, straight to where the tensors are. Tensors
for which that is not possible (another place, dtype, shape or layout, memory
shared with another tensor, payloads inside frames) are assigned one by one
afterwards, as the general way does it.

Not here: whether a local restore is right (``fast_resumable``), and reading
itself (``paddle.framework.io_utils``).
"""

from __future__ import annotations

import collections
import os
import time
from typing import NamedTuple

import numpy as np
import paddle
from paddle.distributed.fleet.utils.log_util import logger
from paddle.framework.io_utils import (
    _ParallelPayloads,
    _ReadFault,
    _resolve_num_workers,
    _StreamUnsuited,
)

from .distcp_reader import DistcpFormatError, _stand_ins
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


class _Restored(NamedTuple):
    """A tensor of the state dict and what the file holds for it."""

    key: str
    tensor: paddle.Tensor
    stored: object


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
        pairs.append(_Restored(key, tensor, stored_tensors[key]))
    return pairs


def _has_its_place(pair):
    """Whether a tensor's memory looks just as its payload does."""
    tensor, stored = pair.tensor, pair.stored
    return (
        getattr(stored.data, 'payload', None) is not None
        and not stored.is_fortran
        and tensor._is_initialized()
        and tensor.is_dense()
        and tensor.place.is_cpu_place()
        and _STORED_CODES.get(tensor.dtype) == stored.dtype.code
        and tuple(tensor.shape) == stored.shape
        and tensor.is_contiguous()
    )


def _direct_payloads(pairs):
    """The tensor to read each payload into, where there is just one for it.

    Tensors that share memory with each other are left out: which of them is
    written last decides, as it does when they are assigned in order.
    """
    counts = collections.Counter(
        id(pair.stored.data) for pair in pairs if pair.stored.data is not None
    )
    ranges = sorted(
        (
            (pair.tensor.data_ptr(), index)
            for index, pair in enumerate(pairs)
            if _has_its_place(pair) and counts[id(pair.stored.data)] == 1
        ),
    )
    shared = set()
    end, last = 0, None
    for start, index in ranges:
        if start < end:
            shared |= {index, last}
        length_bytes = pairs[index].stored.data.length_bytes
        if start + length_bytes > end:
            end, last = start + length_bytes, index
    return {
        pairs[index].stored.data.payload: pairs[index]
        for _, index in ranges
        if index not in shared
    }


def _read_payloads(fd, payloads, direct, num_workers):
    """Read payloads into tensors, those of no tensor into buffers.

    Args:
        fd (int): The open file.
        payloads (list[_Payload]): In file order.
        direct (dict[_Payload, _Restored]): The tensors to read into.
        num_workers (int): The most threads to read with.

    Returns:
        dict[_Payload, np.ndarray]: The buffers.

    Raises:
        _ReadFault: names the tensors that may have been written to.
    """
    buffers = {
        payload: np.empty(payload.length_bytes, 'u1')
        for payload in payloads
        if payload not in direct
    }
    targets = [
        (direct[payload].tensor, direct[payload].tensor.data_ptr())
        if payload in direct
        else (buffers[payload], buffers[payload].ctypes.data)
        for payload in payloads
    ]
    reader = _ParallelPayloads(fd, payloads, num_workers, targets)
    try:
        with reader:
            for _ in payloads:
                reader.take()
    except _ReadFault as fault:
        touched = [payloads[index] for index in sorted(reader.touched)]
        keys = [direct[p].key for p in touched if p in direct]
        raise _ReadFault(
            f'{fault}; overwritten already, in part or whole: '
            f'{", ".join(keys) or "no tensor"}'
        ) from fault
    finally:
        for pair in direct.values():
            pair.tensor._bump_inplace_version()
    return buffers


def _assign(pair, buffers):
    """Assign a tensor the general way, from bytes of the file."""
    stored = pair.stored
    payload = getattr(stored.data, 'payload', None)
    data = stored.data if payload is None else buffers[payload]
    array = np.frombuffer(data, stored.dtype.code).reshape(
        stored.shape, order='F' if stored.is_fortran else 'C'
    )
    source = paddle.to_tensor(array).to(pair.tensor.place)
    paddle.assign(source, pair.tensor)


def _restore(path, fd, state_dict, num_workers):
    """Restore all of a state dict; give a summary for the log."""
    stored_tensors, _ = _stand_ins(fd, path)
    pairs = _match(state_dict, stored_tensors)
    direct = _direct_payloads(pairs)
    payloads = sorted(
        {
            pair.stored.data.payload
            for pair in pairs
            if getattr(pair.stored.data, 'payload', None) is not None
        }
    )
    buffers = (
        _read_payloads(fd, payloads, direct, num_workers) if payloads else {}
    )
    in_place = {id(pair) for pair in direct.values()}
    for pair in pairs:
        if id(pair) not in in_place:
            _assign(pair, buffers)
    return f'{len(direct)} of {len(pairs)} tensors in place'


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
        with open(file_path, 'rb', buffering=0) as f:
            done = _restore(file_path, f.fileno(), state_dict, num_workers)
    except (OSError, DistcpFormatError) as error:
        logger.debug(f'{file_path} is restored the general way: {error}.')
        return False
    except (_ReadFault, _StreamUnsuited) as fault:
        logger.warning(
            f'{file_path} could not be read with num_workers={num_workers} '
            f'({fault}); it is loaded serially.'
        )
        return False
    elapsed_s = time.perf_counter() - started_s
    logger.info(f'{file_path}: restored {done} in {elapsed_s:.3f} s.')
    return True
