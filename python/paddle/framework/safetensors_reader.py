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


"""Reading safetensors files in parallel: paddle.load(..., num_workers=n).

A safetensors file is the header's length (8 bytes, little-endian), the header
(a JSON object: name, dtype, shape and place of each tensor) and the tensors'
bytes. The library `safetensors` opens the file first and thereby checks the
header with all its lengths against the file, before anything is allocated
here: dtypes and shapes are what it says, and as it admits neither holes nor
overlaps, the tensors lie one after the other in the order of their offsets.
Their bytes are then read in parallel, one `bytearray` for each tensor, from
which arrays or Tensors are made as the library makes them.

The library's own load is the definition of right. Whatever is not certain to
be the same here (dtypes, places, versions of the library that load in another
way) and whatever fails ends in it.

Not here: threads and reads, and what the log says (`io_utils`).
"""

from __future__ import annotations

import math
import os
import sys
from typing import NamedTuple

import numpy as np
import paddle
from paddle.base import core
from paddle.base.framework import _current_expected_place_, in_dygraph_mode

from . import io_utils

_HEADER_LENGTH_BYTES = 8


class _Dtype(NamedTuple):
    """A dtype as numpy and Paddle call it, and the size of one item."""

    name: str
    item_bytes: int


_SHARED_DTYPES = {
    'BOOL': _Dtype('bool', 1),
    'I8': _Dtype('int8', 1),
    'I16': _Dtype('int16', 2),
    'I32': _Dtype('int32', 4),
    'I64': _Dtype('int64', 8),
    'U8': _Dtype('uint8', 1),
    'F16': _Dtype('float16', 2),
    'F32': _Dtype('float32', 4),
    'F64': _Dtype('float64', 8),
    'C64': _Dtype('complex64', 8),
}

# bfloat16 and 8-bit floats are not numpy's own.
_ARRAY_DTYPES = {
    **_SHARED_DTYPES,
    'U16': _Dtype('uint16', 2),
    'U32': _Dtype('uint32', 4),
    'U64': _Dtype('uint64', 8),
}

# The library makes bfloat16 of uint16; for the larger ones Paddle lacks kernels.
_TENSOR_DTYPES = {
    **_SHARED_DTYPES,
    'BF16': _Dtype('bfloat16', 2),
    'F8_E4M3': _Dtype('float8_e4m3fn', 1),
    'F8_E5M2': _Dtype('float8_e5m2', 1),
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


class _Arrays:
    """Results as `safetensors.numpy.load_file` gives them."""

    framework = 'np'
    dtypes = _ARRAY_DTYPES

    @staticmethod
    def check():
        """Arrays are the same everywhere."""

    @staticmethod
    def empty(handle, key):
        return handle.get_tensor(key)

    @staticmethod
    def make(data, dtype, shape):
        return np.frombuffer(data, dtype).reshape(shape)


class _Tensors:
    """Results as `safetensors.paddle.load_file(device='cpu')` gives them."""

    framework = 'paddle'
    dtypes = _TENSOR_DTYPES

    @staticmethod
    def check():
        if not in_dygraph_mode():
            raise io_utils._StreamUnsuited('Tensors are expected to be eager')
        place = _current_expected_place_()
        if not isinstance(place, core.CPUPlace):
            raise io_utils._StreamUnsuited(
                f'Tensors are expected on the CPU, but go to {place}'
            )
        # The library compares so too; below, it copies numpy's arrays.
        if paddle.__version__ < '3.2.0':
            raise io_utils._StreamUnsuited(
                'the library makes Tensors of arrays for Paddle '
                f'{paddle.__version__}'
            )

    @staticmethod
    def empty(handle, key):
        # Some dtypes fail in the library, and two of them may end the process.
        raise io_utils._StreamUnsuited(f'the tensor {key!r} is empty')

    @staticmethod
    def make(data, dtype, shape):
        flat = core.eager.Tensor(
            value=np.frombuffer(data, 'uint8'),
            place=core.CPUPlace(),
            persistable=False,
            zero_copy=True,
            name=None,
            stop_gradient=True,
        )
        # At least one view: that gives the name that the library's have.
        row = flat.unsqueeze(0)
        return row.view(getattr(paddle, dtype)).reshape(shape)


# ---- plan: what lies where


def _plan_entries(path, fd, file_bytes, results):
    """The tensors of a file whose header the library accepts, in its order.

    Args:
        path (str|os.PathLike): The file.
        fd (int): The same file, open.
        file_bytes (int): Its size.
        results (type): `_Arrays` or `_Tensors`.

    Returns:
        list[_Entry]: In the order of offsets.

    Raises:
        _StreamUnsuited: the library rejects the file or is too old, or a
            tensor is none that `results` makes.
    """
    from safetensors import SafetensorError, safe_open  # as Paddle does: late

    length = io_utils._read_at(fd, 0, _HEADER_LENGTH_BYTES)
    offset = _HEADER_LENGTH_BYTES + int.from_bytes(length, 'little')
    try:
        with safe_open(path, framework=results.framework) as handle:
            entries = []
            for key in _offset_keys(handle):
                entry = _entry(handle, key, offset, results)
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


def _entry(handle, key, offset, results):
    header = handle.get_slice(key)
    code, shape = header.get_dtype(), header.get_shape()
    dtype = results.dtypes.get(code)
    if dtype is None:
        raise io_utils._StreamUnsuited(
            f'{key!r} is of dtype {code}, which is left to the library'
        )
    length_bytes = math.prod(shape) * dtype.item_bytes
    payload = empty = None
    if length_bytes:
        payload = io_utils._Payload(offset, offset, length_bytes, True)
    else:
        empty = results.empty(handle, key)
    return _Entry(key, dtype.name, shape, payload, empty)


# ---- read, assemble


def _load_in_parallel(path, num_workers, results):
    io_utils._check_platform()
    if sys.byteorder != 'little':
        raise io_utils._StreamUnsuited('this platform is big-endian')
    results.check()
    with open(path, 'rb', buffering=0) as f:
        fd = f.fileno()
        file_bytes = os.fstat(fd).st_size
        if file_bytes < io_utils._MIN_PARALLEL_BYTES:
            raise io_utils._StreamUnsuited(f'it holds only {file_bytes} bytes')
        entries = _plan_entries(path, fd, file_bytes, results)
        payloads = [entry.payload for entry in entries if entry.payload]
        if not payloads:
            raise io_utils._StreamUnsuited('its tensors are empty')
        with io_utils._ParallelPayloads(fd, payloads, num_workers) as reader:
            return {
                entry.key: results.make(reader.take(), entry.dtype, entry.shape)
                if entry.payload
                else entry.empty
                for entry in entries
            }


def _load(load_file, path, num_workers, results, options):
    def in_parallel():
        return _load_in_parallel(path, num_workers, results)

    def serially():
        return load_file(path, **options)

    if num_workers <= 1 or not isinstance(path, (str, os.PathLike)):
        return serially()
    return io_utils._in_parallel_or_serially(
        in_parallel, serially, path, num_workers
    )


def _load_safetensors_arrays(load_file, path, num_workers, **options):
    """What `safetensors.numpy.load_file` gives, read in parallel if that pays.

    Args:
        load_file (callable): Loads the file serially, called as
            `load_file(path, **options)`.
        path (str|os.PathLike): The file. Anything else is left to `load_file`.
        num_workers (int): The most threads to read with; 1 is serial.

    Returns:
        dict[str, np.ndarray]: The tensors by name.
    """
    return _load(load_file, path, num_workers, _Arrays, options)


def _load_safetensors_tensors(load_file, path, num_workers, **options):
    """What `safetensors.paddle.load_file` gives, read in parallel if that pays.

    The library maps the file and reads nothing yet; a page is read when it is
    first used, and copied when it is first written to. Here all is in memory
    when the load returns, and what then becomes of the file does not matter.
    With the file in the page cache that is slower for Tensors that are only
    read from, and faster for those that are written to.

    Args:
        load_file (callable): Loads the file serially to the CPU, called as
            `load_file(path, **options)`.
        path (str|os.PathLike): The file. Anything else is left to `load_file`.
        num_workers (int): The most threads to read with; 1 is serial.

    Returns:
        dict[str, paddle.Tensor]: The tensors by name.
    """
    return _load(load_file, path, num_workers, _Tensors, options)
