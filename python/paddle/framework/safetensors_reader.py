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


"""Reading safetensors files in parallel: NumPy results of paddle.load.

A safetensors file is the header's length (8 bytes, little-endian), the header
(a JSON object: name, dtype, shape and place of each tensor) and the tensors'
bytes. The library `safetensors` opens the file first and thereby checks the
header with all its lengths against the file, before anything is allocated
here: dtypes and shapes are what it says, and as it admits neither holes nor
overlaps, the tensors lie one after the other in the order of their offsets.
Their bytes are then read in parallel, one `bytearray` for each tensor, from
which arrays are made as the library makes them.

The library's own load is the definition of right. Whatever is not certain to
be the same here (dtypes, versions of the library that load in another way) and
whatever fails ends in it.

Only arrays are read so (return_numpy=True): the library reads and copies them
one after the other. For Tensors it only maps the file, lazily: a page is read
when it is first used. Reading all of it, even in parallel, is slower than that,
also if the Tensors are assigned to a model afterwards. So Tensors stay the
library's own, whatever num_workers is.

Not here: threads and reads, and what the log says (`io_utils`).
"""

from __future__ import annotations

import math
import os
import sys
from typing import NamedTuple

import numpy as np

from . import io_utils

_HEADER_LENGTH_BYTES = 8


class _Dtype(NamedTuple):
    """A dtype as numpy calls it, and the size of one item."""

    name: str
    item_bytes: int


# bfloat16 and 8-bit floats are not numpy's own.
_DTYPES = {
    'BOOL': _Dtype('bool', 1),
    'I8': _Dtype('int8', 1),
    'I16': _Dtype('int16', 2),
    'I32': _Dtype('int32', 4),
    'I64': _Dtype('int64', 8),
    'U8': _Dtype('uint8', 1),
    'U16': _Dtype('uint16', 2),
    'U32': _Dtype('uint32', 4),
    'U64': _Dtype('uint64', 8),
    'F16': _Dtype('float16', 2),
    'F32': _Dtype('float32', 4),
    'F64': _Dtype('float64', 8),
    'C64': _Dtype('complex64', 8),
}


class _Entry(NamedTuple):
    """A tensor of the file.

    Attributes:
        key (str): Its name.
        dtype (str): The name of its dtype.
        shape (list[int]): Its shape.
        payload (_Payload|None): Where its bytes lie. None for an empty array.
        empty (np.ndarray|None): The empty array, as the library makes it.
    """

    key: str
    dtype: str
    shape: list
    payload: io_utils._Payload | None
    empty: np.ndarray | None


# ---- plan: what lies where


def _plan_entries(path, fd, file_bytes):
    """The tensors of a file whose header the library accepts, in its order.

    Args:
        path (str|os.PathLike): The file.
        fd (int): The same file, open.
        file_bytes (int): Its size.

    Returns:
        list[_Entry]: In the order of offsets.

    Raises:
        _StreamUnsuited: the library rejects the file or is too old, or a
            dtype is left to it.
    """
    from safetensors import SafetensorError, safe_open  # as Paddle does: late

    length = io_utils._read_at(fd, 0, _HEADER_LENGTH_BYTES)
    offset = _HEADER_LENGTH_BYTES + int.from_bytes(length, 'little')
    try:
        with safe_open(path, framework='np') as handle:
            entries = []
            for key in _offset_keys(handle):
                entry = _entry(handle, key, offset)
                entries.append(entry)
                offset = entry.payload.end if entry.payload else offset
        # The library has opened the path for itself.
        if not os.path.samestat(os.stat(path), os.fstat(fd)):
            raise io_utils._StreamUnsuited('the file was replaced meanwhile')
    except (SafetensorError, OSError) as error:
        raise io_utils._StreamUnsuited(
            f'it cannot be opened: {type(error).__name__}: {error}'
        ) from error
    if offset != file_bytes:
        raise io_utils._StreamUnsuited(
            f'the last tensor is expected to end at {file_bytes}, the end of '
            f'the file, but ends at {offset}'
        )
    return entries


def _offset_keys(handle):
    try:
        return handle.offset_keys()
    except AttributeError:
        raise io_utils._StreamUnsuited(
            'the library is expected to tell the order of the tensors; '
            'safetensors 0.6 does'
        ) from None


def _entry(handle, key, offset):
    header = handle.get_slice(key)
    code, shape = header.get_dtype(), header.get_shape()
    dtype = _DTYPES.get(code)
    if dtype is None:
        raise io_utils._StreamUnsuited(
            f'{key!r} is of dtype {code}, which is left to the library'
        )
    length_bytes = math.prod(shape) * dtype.item_bytes
    payload = empty = None
    if length_bytes:
        payload = io_utils._Payload(offset, offset, length_bytes, True)
    else:
        empty = handle.get_tensor(key)
    return _Entry(key, dtype.name, shape, payload, empty)


# ---- read, assemble


def _make_array(data, dtype, shape):
    return np.frombuffer(data, dtype).reshape(shape)


def _load_in_parallel(path, num_workers):
    io_utils._check_platform()
    if sys.byteorder != 'little':
        raise io_utils._StreamUnsuited('this platform is big-endian')
    with open(path, 'rb', buffering=0) as f:
        fd = f.fileno()
        file_bytes = os.fstat(fd).st_size
        if file_bytes < io_utils._MIN_PARALLEL_BYTES:
            raise io_utils._StreamUnsuited(f'it holds only {file_bytes} bytes')
        entries = _plan_entries(path, fd, file_bytes)
        payloads = [entry.payload for entry in entries if entry.payload]
        if not payloads:
            raise io_utils._StreamUnsuited('its tensors are empty')
        reader = io_utils._ParallelPayloads(fd, payloads, num_workers)
        with reader, reader:
            reader.start()
            return {
                entry.key: _make_array(reader.take(), entry.dtype, entry.shape)
                if entry.payload
                else entry.empty
                for entry in entries
            }


def _load_safetensors_arrays(load_file, path, num_workers):
    """What `safetensors.numpy.load_file` gives, read in parallel if that pays.

    Args:
        load_file (callable): Loads the file serially, called with its path.
        path (str|os.PathLike): The file. Anything else is left to `load_file`.
        num_workers (int): The most threads to read with; 1 is serial.

    Returns:
        dict[str, np.ndarray]: The tensors by name.
    """

    def in_parallel():
        return _load_in_parallel(path, num_workers)

    def serially():
        return load_file(path)

    if num_workers <= 1 or not isinstance(path, (str, os.PathLike)):
        return serially()
    return io_utils._in_parallel_or_serially(
        in_parallel, serially, path, num_workers
    )
