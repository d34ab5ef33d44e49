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

"""Checkpoints of tensors of any shapes, made of one file of random words.

As `load_jobs.Checkpoint`, which they can stand in for, but not of equally
large tensors alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .common import VerificationError, same_bytes

if TYPE_CHECKING:
    from pathlib import Path

WORD_BYTES = 8

FLOAT_BYTES = 4


class Layout(NamedTuple):
    """A file of float32 tensors.

    Args:
        path(Path): of the file.
        pool(Path): of the words that its tensors are made of: tensor number i
            is the bytes from word i on.
        shapes(dict): shape of each tensor, by its key.
    """

    path: Path
    pool: Path
    shapes: dict[str, tuple[int, ...]]

    @property
    def payload_bytes(self) -> int:
        """Of all tensors."""
        return FLOAT_BYTES * sum(map(math.prod, self.shapes.values()))

    @property
    def pool_bytes(self) -> int:
        """How many bytes the pool must have."""
        largest = max(map(math.prod, self.shapes.values()), default=0)
        return (
            -(-largest * FLOAT_BYTES // WORD_BYTES) + len(self.shapes)
        ) * WORD_BYTES

    def expected(self) -> dict[str, np.ndarray]:
        """The right value of every tensor, read from the pool when used."""
        pool = np.memmap(self.pool, np.uint8, 'c').view(np.ndarray)
        values = {}
        for number, (key, shape) in enumerate(self.shapes.items()):
            start = number * WORD_BYTES
            stop = start + FLOAT_BYTES * math.prod(shape)
            values[key] = pool[start:stop].view(np.float32).reshape(shape)
        return values


def equal_shapes(count: int, tensor_bytes: int) -> dict[str, tuple[int, ...]]:
    """So many vectors of so many bytes, which 4 divides."""
    return {
        f'layer_{number}.weight': (tensor_bytes // FLOAT_BYTES,)
        for number in range(count)
    }


def verify_arrays(loaded: dict[str, np.ndarray], layout: Layout) -> int:
    """Compares all arrays of a peer with the pool.

    Returns:
        int: how many bytes were compared.

    Raises:
        VerificationError: a key, a type, a shape or a byte is wrong.
    """
    expected = layout.expected()
    if loaded.keys() != expected.keys():
        wrong = sorted(loaded.keys() ^ expected.keys())
        raise VerificationError(
            f'{layout.path}: {len(wrong)} keys are missing or too many, '
            f'e.g. {wrong[0]}'
        )
    for key, right in expected.items():
        value = loaded[key]
        if (value.dtype, value.shape) != (right.dtype, right.shape):
            raise VerificationError(
                f'{layout.path}: {key}: expected {right.dtype} {right.shape}, '
                f'but received {value.dtype} {value.shape}'
            )
        if not same_bytes(value, right):
            raise VerificationError(
                f'{layout.path}: {key}: its bytes differ from those saved'
            )
    return layout.payload_bytes
