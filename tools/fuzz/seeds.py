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

"""The files that are damaged: every protocol, dtype, layout and writer.

A seed is the same in every process: names are given, sets hold integers, and
all that is random comes from the number of the seed.
"""

from __future__ import annotations

import collections
import functools
import io
import pickle
import pickletools
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import paddle
from paddle.distributed.flex_checkpoint.dcp.metadata import (
    LocalTensorIndex,
    LocalTensorMetadata,
    Metadata,
)
from safetensors.numpy import save

from . import streams

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = (
    'bool', 'int8', 'uint8', 'int16', 'uint16', 'int32', 'int64', 'float16',
    'float32', 'float64', 'complex64', 'complex128',
)  # fmt: skip

# No more seeds of a kind: cases share them, and large ones take time to parse.
SEEDS_PER_KIND = 120

# From this size on the C pickler writes payloads between frames; smaller ones
# in its place let small files have payloads.
PICKLER_TARGET_BYTES = 64 * 1024
TARGETS_BYTES = (1, 64, 300, PICKLER_TARGET_BYTES)

_NAME_TABLE_KEY = 'StructuredToParameterName@@'

# What the checkpoint of a metadata seed holds. Some seeds have the names of
# fields among their keys, for they are what a reader looks for.
PLAIN_SHAPES = {'a': (2, 3), 'b': (4,)}
CHECKPOINT_SHAPES = {
    **PLAIN_SHAPES,
    'storage_metadata': (),
    'flat_mapping': (1, 5),
}


class Seed(NamedTuple):
    """A pickle as pieces, and from which size on payloads have no frame."""

    pieces: list[bytes]
    target_bytes: int

    @property
    def data(self) -> bytes:
        """The whole file."""
        return b''.join(self.pieces)


# ---- values


def _shape(rng, item_bytes):
    """A shape; one in eight is that of a payload about as large as a frame."""
    if rng.random() < 0.12:
        length = PICKLER_TARGET_BYTES + rng.choice((-1, 0, 1, 24)) * item_bytes
        return (length // item_bytes,)
    return rng.choice(
        ((), (0,), (1,), (3,), (2, 3), (4, 0, 2), (5, 7), (2, 3, 4), (130,))
    )


def _array(rng, dtype=None):
    dtype = np.dtype(dtype or rng.choice(DTYPES))
    shape = _shape(rng, dtype.itemsize)
    count = int(np.prod(shape)) * dtype.itemsize
    data = bytearray(rng.randbytes(count))
    if dtype.kind == 'b':
        data = bytearray(byte & 1 for byte in data)
    array = np.frombuffer(data, dtype).reshape(shape)
    layout = rng.random()
    if layout < 0.15:
        return np.asfortranarray(array)
    if layout < 0.3:
        return array.T
    if layout < 0.4 and array.ndim:
        return array[::-1]
    if layout < 0.5:
        array.flags.writeable = False
    return array


def _tensor(rng, name):
    dtype = rng.choice(('float32', 'int64', 'bfloat16', 'bool', 'complex64'))
    shape = rng.choice(((), (2, 3), (5,), (130,)))
    if rng.random() < 0.05:
        shape = (PICKLER_TARGET_BYTES // 4,)
    values = np.arange(int(np.prod(shape))).reshape(shape) % 2
    tensor = paddle.to_tensor(values).astype(dtype)
    tensor.name = name
    return tensor


def _arrays(rng, count=None):
    count = rng.randrange(1, 5) if count is None else count
    return {f'layer.{index}.w': _array(rng) for index in range(count)}


def _objects(rng):
    shared = rng.randbytes(rng.choice((30, 300, PICKLER_TARGET_BYTES + 24)))
    return collections.OrderedDict(
        w=[shared, 1.5, 'text', (1, None, True), -7],
        b={'again': shared, 'n': 2**70, 'set': {1, 2}},
        v=bytearray(rng.randbytes(rng.choice((5, 300)))),
        c=complex(1, 2),
        s=np.float32(2.5),
        long='x' * 300,
    )


def _saved(rng, protocol):
    """What paddle.save writes: states of layers and optimizers, nested."""
    tensors = {f'l.{i}.w': _tensor(rng, f'p_{i}') for i in range(3)}
    value = rng.choice(
        (
            tensors,
            {
                **tensors,
                'LR_Scheduler': {'last_epoch': 3, 'last_lr': 0.1},
                'master_weights': {'p_0': _tensor(rng, 'm_0')},
            },
            [tensors, (_tensor(rng, 't'), 5), {'x': np.ones(3)}],
            _tensor(rng, 'one'),
        )
    )
    if isinstance(value, dict) and rng.random() < 0.5:
        value = {key: tensor.numpy() for key, tensor in tensors.items()}
        value[_NAME_TABLE_KEY] = {key: f'n_{key}' for key in tensors}
        return _written(rng, value, protocol)
    f = io.BytesIO()
    paddle.save(value, f, protocol=min(protocol, 4))
    return f.getvalue()


# ---- writers


def _written(rng, value, protocol):
    """A pickle of one of the writers: in C, in Python, optimized."""
    kind = rng.random()
    if kind < 0.2:
        try:
            return pickle._dumps(value, protocol)
        except AssertionError:  # of CPython's, over arrays in protocol 5
            pass
    data = pickle.dumps(value, protocol)
    return pickletools.optimize(data) if kind < 0.4 else data


def _seed(rng, data):
    """The file as written, or as a writer of other frames would have it."""
    pieces = streams.parse(data)
    target_bytes = rng.choice(TARGETS_BYTES)
    if data[1] < 4:
        return Seed(pieces, PICKLER_TARGET_BYTES)
    if target_bytes == PICKLER_TARGET_BYTES and rng.random() < 0.7:
        return Seed(pieces, target_bytes)
    if target_bytes == 1 and rng.random() < 0.5:
        return Seed(streams.reframed(pieces, None), 1)
    if target_bytes < PICKLER_TARGET_BYTES:
        pieces = [_widened(piece) for piece in pieces]
    return Seed(streams.reframed(pieces, target_bytes), target_bytes)


def _widened(piece):
    """BINBYTES for SHORT_BINBYTES: it counts as a payload."""
    return streams.payload(piece[2:]) if piece[:1] == b'C' else piece


# ---- kinds of files


def _pickle_seed(rng):
    protocol = rng.choice((2, 3, 4, 4, 4, 5, 5))
    kind = rng.random()
    if kind < 0.35:
        data = _written(rng, _arrays(rng), protocol)
    elif kind < 0.65:
        data = _written(rng, _objects(rng), protocol)
    else:
        data = _saved(rng, protocol)
    return _seed(rng, data)


def _distcp_seed(rng):
    protocol = rng.choice((2, 3, 4, 4, 4, 5, 5))
    arrays = _arrays(rng)
    if rng.random() < 0.7:
        arrays[_NAME_TABLE_KEY] = {key: f'n_{key}' for key in arrays}
    return _seed(rng, _written(rng, arrays, protocol))


def _shards(rng):
    """The metadata of each tensor; of a quarter of the seeds one is split."""
    whole = rng.random() < 0.75
    shards = {}
    shapes = PLAIN_SHAPES if rng.random() < 0.7 else CHECKPOINT_SHAPES
    as_one_object = rng.random() < 0.3
    for key, shape in shapes.items():
        # An equal string that is another object is spelled out again.
        key = key if as_one_object else bytes(key, 'ascii').decode()
        shard = LocalTensorMetadata((0,) * len(shape), shape, 'float32', shape)
        shards[key] = [shard]
    if not whole:
        changes = rng.choice(
            (
                {'global_offset': (1,)},
                {'global_shape': (8,)},
                {'is_flattened': True, 'flattened_range': (0, 4)},
                {'local_shape': (2,)},
            )
        )
        split = LocalTensorMetadata((0,), (4,), 'float32', (4,))
        vars(split).update(changes)
        shards['b'] = [split]
    return shards


def _metadata_of(rng, ranks):
    shards = _shards(rng)
    replicas = rng.random() < 0.6
    storage = {}
    for rank in range(ranks):
        for key, (shard, *_) in shards.items():
            index = LocalTensorIndex(
                key,
                shard.global_offset,
                replica_id=rank if replicas else None,
                local_shape=shard.local_shape,
            )
            storage[index] = f'{rank}_0.distcp'
    mapping = {key: (key,) for key in shards}
    return Metadata(shards, storage, mapping)


def _metadata_seed(rng):
    # The last is longer than what a reader takes at once.
    ranks = rng.choice((1, 1, 1, 1, 2, 2, 5, 400))
    data = _written(rng, _metadata_of(rng, ranks), rng.choice((2, 3, 4, 4, 5)))
    return Seed(streams.parse(data), PICKLER_TARGET_BYTES)


def _safetensors_seed(rng):
    arrays = {
        f'layer.{i}.w': np.ascontiguousarray(_array(rng, dtype))
        for i, dtype in enumerate(rng.choices(DTYPES[:-1], k=rng.randrange(5)))
    }
    metadata = {'format': 'np'} if rng.random() < 0.4 else None
    return save(arrays, metadata)


_MAKERS: dict[str, Callable[[random.Random], Any]] = {
    'pickle': _pickle_seed,
    'distcp': _distcp_seed,
    'metadata': _metadata_seed,
    'safetensors': _safetensors_seed,
}


@functools.cache
def seed(kind: str, number: int) -> Any:
    """A file that is whole.

    Args:
        kind(str): pickle, distcp, metadata or safetensors.
        number(int): Which of the `SEEDS_PER_KIND`.

    Returns:
        Seed|bytes: A pickle as `Seed`, a safetensors file as bytes.
    """
    return _MAKERS[kind](random.Random(f'{kind} {number}'))
