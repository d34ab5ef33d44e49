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

"""What is compared for each kind of file, but metadata.

The oracle is the serial load. A check gives the same findings for the same
file and variant; nothing here is random.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import paddle
from paddle.distributed.flex_checkpoint.dcp import compact_pickle, distcp_reader
from paddle.distributed.flex_checkpoint.dcp import load_state_dict as loader
from paddle.distributed.flex_checkpoint.dcp.distcp_reader import (
    DistcpFormatError,
)
from paddle.framework import io_utils, safetensors_reader

from . import restricted
from .compare import Check, Result, case, shown, steady, thresholds
from .metadata import check_metadata

if TYPE_CHECKING:
    from collections.abc import Callable

# Larger tensors than a file can hold; a shape of zeros in it may claim them.
_MAX_RESTORED_BYTES = 4 << 20

_NAME_TABLE_KEY = 'StructuredToParameterName@@'

_TENSOR_DTYPES = frozenset(
    ('bool', 'int8', 'uint8', 'int16', 'int32', 'int64', 'float16',
     'float32', 'float64', 'complex64', 'complex128')
)  # fmt: skip


# ---- pickles


def check_index(check: Check, path: str) -> None:
    """Payloads of an index follow each other and lie within the file."""
    with open(path, 'rb') as f:
        read_at = functools.partial(io_utils._read_at, f.fileno())
        try:
            payloads = io_utils._index_payloads(read_at, len(check.data), 1)
        except io_utils._StreamUnsuited:
            return
    end = 0
    for payload in payloads:
        opcode = check.data[payload.opcode_offset : payload.opcode_offset + 1]
        length = check.data[payload.opcode_offset + 1 : payload.offset]
        check.require(
            end <= payload.opcode_offset < payload.offset
            and payload.end <= len(check.data)
            and opcode in (b'B', b'\x8e', b'\x96')
            and payload.is_bytearray == (opcode == b'\x96')
            and int.from_bytes(length, 'little') == payload.length_bytes,
            f'index: {payload} after {end} of {len(check.data)} bytes',
        )
        end = payload.end


def _unpickle(path, num_workers):
    with open(path, 'rb') as f:
        return io_utils._load_pickle(restricted.load, path, f, num_workers)


def check_pickle(check: Check) -> Result:
    """paddle.load, and what it unpickles before it converts anything."""
    path = check.write('model.pdparams')
    expected = check.oracle(_unpickle, path, 1)
    outcome = 'value' if expected[0] == 'value' else 'error'
    names = list(restricted.asked)
    with thresholds(check), case.attempts() as ends:
        found = check.ours(_unpickle, path, check.workers)
        names_found = list(restricted.asked)
        parallel = None in ends
        check.require_same('unpickled', expected, found)
        if parallel:
            check.require_same('names', names, names_found)
        check_index(check, path)
        options = check.choose(
            {}, {'return_numpy': True}, {'keep_name_table': True}, None
        )
        if options is not None:
            expected = check.oracle(paddle.load, path, **options)
            found = check.ours(
                paddle.load, path, num_workers=check.workers, **options
            )
            check.require_same(f'paddle.load {options}', expected, found)
    return Result(outcome, parallel, check.findings)


# ---- data files of checkpoints


def _full_load(path):
    with open(path, 'rb') as f:
        return restricted.load(f, encoding='latin1')


def scanned(path: str) -> dict[str, tuple[int, ...]] | None:
    """The shapes of a data file; None for a refusal."""
    try:
        return distcp_reader.scan_tensor_shapes(path)
    except (DistcpFormatError, OSError):
        return None


def check_scan(check: Check, path: str, arrays: Any) -> bool:
    """Shapes are those of the arrays in the file, or there are none.

    Args:
        check(Check): The file.
        path(str): Where it is.
        arrays(Any): What the full load gives; None if that is an error.

    Returns:
        bool: Whether there are shapes.
    """
    kind, *shapes = check.ours(scanned, path)
    if kind == 'raises':
        check.findings.append(f'scan: {shown(shapes)}')
        return False
    if shapes[0][1] == 'None':
        return False
    expected = None
    if type(arrays) is dict:
        arrays = {k: v for k, v in arrays.items() if k != _NAME_TABLE_KEY}
        if all(type(value) is np.ndarray for value in arrays.values()):
            expected = {key: value.shape for key, value in arrays.items()}
    found = distcp_reader.scan_tensor_shapes(path)
    check.require(
        expected == found and list(expected) == list(found),
        f'scan: expected {shown(expected)}, but received {shown(found)}',
    )
    return True


def _zeros(array):
    if (
        type(array) is np.ndarray
        and array.dtype.name in (*_TENSOR_DTYPES, 'uint16')
        and array.nbytes <= _MAX_RESTORED_BYTES
    ):
        dtype = array.dtype.name.replace('uint16', 'bfloat16')
        return paddle.zeros(list(array.shape), dtype)
    return None


def _state_dict(arrays, twist):
    """Tensors for what a file holds, which the twist makes odd."""
    state_dict = {}
    if type(arrays) is dict:
        for key, array in arrays.items():
            tensor = _zeros(array)
            if tensor is not None and type(key) is str:
                state_dict[key] = tensor
    first = next(iter(state_dict), None)
    if twist == 'missing' or first is None:
        state_dict['no such key'] = paddle.zeros([2])
    elif twist == 'dtype':
        state_dict[first] = state_dict[first].astype('float64')
    elif twist == 'shape':
        state_dict[first] = paddle.zeros([3], state_dict[first].dtype)
    elif twist == 'tied':
        for key in state_dict:
            if state_dict[key].shape == state_dict[first].shape:
                state_dict[key] = state_dict[first]
    elif twist == 'view' and len(state_dict[first].shape) == 2:
        state_dict[first] = _zeros(arrays[first].T).t()
    return state_dict


def _seen(tensor):
    """All that a restore may change about a tensor."""
    return (
        tensor.numpy().tobytes(), tuple(tensor.shape), tensor.dtype,
        tensor.strides, str(tensor.place), tensor.inplace_version,
    )  # fmt: skip


def _restore(check, stage, arrays, twist, num_workers):
    state_dict = _state_dict(arrays, twist)
    before = [_seen(tensor) for tensor in state_dict.values()]
    end = stage(
        loader.local_load_state_dict,
        state_dict,
        check.directory,
        use_dist=False,
        num_workers=num_workers,
    )
    return end, before, [_seen(tensor) for tensor in state_dict.values()]


def _check_restore(check, arrays):
    """In place or not, tensors and errors are those of the general way."""
    twist = check.choose('', 'missing', 'dtype', 'shape', 'tied', 'view')
    expected, _, after = _restore(check, check.oracle, arrays, twist, 1)
    found, before, ours = _restore(
        check, check.ours, arrays, twist, check.workers
    )
    check.require_same(f'restore {twist!r}', expected, found)
    if expected[0] == 'value':
        check.require(ours == after, f'restore {twist!r}: other tensors')
        return
    # Before an error any of the tensors may have been restored, but wholly.
    for index, seen in enumerate(ours):
        check.require(
            seen in (before[index], after[index])
            or seen[0] in _stored_bytes(arrays),
            f'restore {twist!r}: tensor {index} after {shown(expected)}',
        )


def _stored_bytes(arrays):
    values = arrays.values() if type(arrays) is dict else ()
    return [a.tobytes() for a in values if type(a) is np.ndarray]


def check_distcp(check: Check) -> Result:
    """Scan of the shapes, and restore in place."""
    path = check.write('0_0.distcp')
    expected = check.oracle(_full_load, path)
    arrays = _full_load(path) if expected[0] == 'value' else None
    min_payload_bytes = check.choose(64 * 1024, 64)
    index = functools.partial(
        io_utils._index_payloads, min_payload_bytes=min_payload_bytes
    )
    with (
        thresholds(check),
        mock.patch.object(
            compact_pickle, '_MIN_PAYLOAD_BYTES', min_payload_bytes
        ),
        mock.patch.object(
            distcp_reader,
            '_index_payloads',
            lambda read_at, size, gaps: index(read_at, size, gaps=gaps),
        ),
    ):
        has_shapes = check_scan(check, path, arrays)
        _check_restore(check, arrays)
    outcome = 'value' if has_shapes else 'refused'
    return Result(outcome, has_shapes, check.findings)


# ---- safetensors


def _without_chance(outcome):
    """An outcome without what the library leaves to chance.

    That is the order of arrays that are empty, and which of two tensors it
    blames for what.
    """
    if outcome[0] == 'raises':
        return re.sub(r'(deserializing header): .*', r'\1', steady(outcome))
    kind, items = outcome[1]
    in_order = [steady(item) for item in items if 0 not in item[1][2]]
    return kind, in_order, sorted(map(steady, items))


def check_safetensors(check: Check) -> Result:
    """paddle.load(safetensors=True) of arrays.

    Tensors are the library's own, with and without workers; it ends the
    process over some files with an empty one.
    """
    path = check.write('model.safetensors')
    options = {'safetensors': True, 'return_numpy': True}
    ends = []
    attempt = safetensors_reader._load_in_parallel

    def recorded(*args):
        value = attempt(*args)
        ends.append(None)
        return value

    expected = check.oracle(paddle.load, path, **options)
    with (
        thresholds(check),
        mock.patch.object(safetensors_reader, '_load_in_parallel', recorded),
    ):
        found = check.ours(
            paddle.load, path, num_workers=check.workers, **options
        )
    if expected != found:
        check.require_same(
            'safetensors', _without_chance(expected), _without_chance(found)
        )
    outcome = 'value' if expected[0] == 'value' else 'error'
    return Result(outcome, bool(ends), check.findings)


CHECKS: dict[str, Callable[[Check], Any]] = {
    'pickle': check_pickle,
    'distcp': check_distcp,
    'metadata': check_metadata,
    'safetensors': check_safetensors,
}
