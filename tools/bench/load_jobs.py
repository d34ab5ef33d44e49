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

"""What the children of `load.py` do: save, load, verify, plan.

The truth about every tensor is a file of random words, the pool, that no
loader reads: tensor number i is the words from number i on. Each tensor is
thus different from all others, and from itself moved by any distance.
"""

from __future__ import annotations

import functools
import gc
import os
import pickle
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import paddle

from .common import (
    BenchError,
    Sample,
    VerificationError,
    peak_memory,
    reset_peak_memory,
    same_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

WORD_BYTES = 8

# All sizes are multiples of it: tensors are matrices of so many floats a row.
ROW_BYTES = 4096

# What paddle.save adds to the tensors of a state dict.
NAME_TABLE_KEY = 'StructuredToParameterName@@'

# Planning is measured with so many tensors, of the least size that the C
# pickler puts outside its frames: what they hold is stepped over.
PLANNED_TENSORS = 1000
PLANNED_TENSOR_BYTES = 64 * 1024


class Checkpoint(NamedTuple):
    """A file of equally large tensors.

    Args:
        path(Path): of the file.
        pool(Path): of the words that its tensors are made of.
        tensor_bytes(int): of each tensor, a multiple of ROW_BYTES.
        count(int): of the tensors.
    """

    path: Path
    pool: Path
    tensor_bytes: int
    count: int

    @property
    def payload_bytes(self) -> int:
        """Of all tensors."""
        return self.tensor_bytes * self.count

    def expected(self) -> dict[str, np.ndarray]:
        """The right value of every tensor, read from the pool when used.

        Copy on write: what is pickled of a writeable array is writeable.
        """
        words = np.asarray(np.memmap(self.pool, np.uint64, 'c'))
        return {
            f'layer_{number}.weight': words[
                number : number + self.tensor_bytes // WORD_BYTES
            ]
            .view(np.float32)
            .reshape(-1, ROW_BYTES // np.dtype(np.float32).itemsize)
            for number in range(self.count)
        }


def write_pool(path: Path, seed: int, size_bytes: int) -> None:
    """Writes the words that tensors are made of."""
    words = np.random.default_rng(seed).integers(
        0, 1 << 64, size_bytes // WORD_BYTES, np.uint64
    )
    words.tofile(path)


def save(checkpoint: Checkpoint, protocol: int) -> None:
    """Writes the file: with paddle.save, but for protocol 5, which it refuses.

    Newer releases of Paddle write protocol 5, as numpy arrays in both cases.
    """
    state = checkpoint.expected()
    if protocol == 5:
        with open(checkpoint.path, 'wb') as f:
            pickle.dump(dict(state), f, protocol)
        return
    state = {key: paddle.to_tensor(value) for key, value in state.items()}
    paddle.save(state, str(checkpoint.path), protocol=protocol)


def paddle_load(path: str, **options: Any) -> Any:
    """`paddle.load`, which tests put something else in place of."""
    return paddle.load(path, **options)


def timed_load(
    load: Callable[..., Any], checkpoint: Checkpoint, **options: Any
) -> Sample:
    """Loads once, and then verifies all that came out.

    Args:
        load(callable): (path, **options) -> the tensors by their keys.
        checkpoint(Checkpoint): what to load.
        options(Any): of the loader.

    Returns:
        Sample: with the peak memory, which means something in a process that
        has loaded nothing before.

    Raises:
        VerificationError: a key, a type, a shape or a byte is wrong.
    """
    gc.collect()
    before_bytes = reset_peak_memory()
    begin = time.perf_counter()
    loaded = load(str(checkpoint.path), **options)
    seconds = time.perf_counter() - begin
    peak_bytes = peak_memory() - before_bytes
    kind = np.ndarray if options.get('return_numpy') else paddle.Tensor
    verified_bytes = verify(loaded, checkpoint, kind)
    return Sample(seconds, verified_bytes, peak_bytes)


def verify(loaded: Any, checkpoint: Checkpoint, kind: type) -> int:
    """Compares all that was loaded with the pool.

    Args:
        loaded(dict): what a loader gave.
        checkpoint(Checkpoint): what it should be.
        kind(type): of the tensors.

    Returns:
        int: how many bytes were compared.

    Raises:
        VerificationError: a key, a type, a shape or a byte is wrong.
    """
    expected = checkpoint.expected()
    found = loaded.keys() - {NAME_TABLE_KEY}
    if found != expected.keys():
        wrong = sorted(map(str, found ^ expected.keys()))
        raise VerificationError(
            f'{checkpoint.path}: {len(wrong)} keys are missing or too many, '
            f'e.g. {wrong[0]}'
        )
    verified_bytes = 0
    for key, right in expected.items():
        value = loaded[key]
        if not isinstance(value, kind):
            raise VerificationError(
                f'{checkpoint.path}: {key}: expected {kind.__name__}, but '
                f'received {type(value).__name__}'
            )
        if kind is paddle.Tensor:
            value = np.from_dlpack(value)  # shares the memory
        if (value.dtype, value.shape) != (right.dtype, right.shape):
            raise VerificationError(
                f'{checkpoint.path}: {key}: expected {right.dtype} '
                f'{right.shape}, but received {value.dtype} {value.shape}'
            )
        if not same_bytes(value, right):
            raise VerificationError(
                f'{checkpoint.path}: {key}: its bytes differ from those saved'
            )
        verified_bytes += right.nbytes
    return verified_bytes


def timed_plan(checkpoint: Checkpoint) -> Sample:
    """Indexes a file of PLANNED_TENSORS, and verifies where they were found.

    Raises:
        BenchError: this Paddle has no index.
        VerificationError: a tensor was not found in its place.
    """
    try:
        from paddle.framework.io_utils import _index_payloads, _read_at
    except ImportError as error:
        raise BenchError(
            f'{paddle.__file__}: expected the fork tree: {error}'
        ) from error
    with open(checkpoint.path, 'rb') as f:
        read_at = functools.partial(_read_at, f.fileno())
        gc.collect()
        begin = time.perf_counter()
        payloads = _index_payloads(read_at, os.fstat(f.fileno()).st_size)
        seconds = time.perf_counter() - begin
    words = np.memmap(checkpoint.path, np.uint8, 'r')
    expected = list(checkpoint.expected().values())
    found = [
        words[payload.offset : payload.offset + payload.length_bytes]
        for payload in payloads
    ]
    if len(found) != len(expected) or not all(map(same_bytes, found, expected)):
        raise VerificationError(
            f'{checkpoint.path}: expected the places of {len(expected)} '
            f'tensors, but {len(found)} were found, or in other places'
        )
    return Sample(seconds, checkpoint.payload_bytes)
