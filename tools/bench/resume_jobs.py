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

"""What the children of `resume.py` do: save, decide, scan, restore."""

from __future__ import annotations

import ctypes
import functools
import gc
import inspect
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import paddle
from paddle.distributed import load_state_dict
from paddle.distributed.fleet.utils.log_util import logger
from paddle.distributed.flex_checkpoint.dcp.metadata import (
    LocalTensorIndex,
    LocalTensorMetadata,
    Metadata,
)
from paddle.distributed.flex_checkpoint.dcp.metadata_manager import (
    MetadataManager,
)
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight
from paddle.distributed.flex_checkpoint.dcp.utils import (
    check_resumable_locally,
)
from paddle.framework import io_utils

from .common import (
    Sample,
    VerificationError,
    peak_memory,
    reset_peak_memory,
)
from .load_jobs import Checkpoint, verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# 64 KiB as float32: the least that lies outside the frames of a file, so that
# a scan has to find each, and 4,000 of them take no more than 256 MiB.
DECIDED_SHAPE = (128, 128)

# Of one read; smaller and larger ones are no faster.
READ_BYTES = 4 << 20

# Of each rank's part of a split tensor; no check reads it.
PART_SHAPE = (8, 16)


class Replicated(NamedTuple):
    """A checkpoint of whole tensors that every rank has saved.

    Args:
        folder(Path): of the checkpoint.
        keys(int): number of tensors.
        ranks(int): number of files that the metadata names; only that of
            rank 0 exists.
    """

    folder: Path
    keys: int
    ranks: int

    @property
    def metadata_path(self) -> Path:
        """Its metadata file."""
        return self.folder / '0.metadata'

    def names(self) -> list[str]:
        """Of its tensors."""
        return [f'layer_{number}.weight' for number in range(self.keys)]


class Sharded(Replicated):
    """A checkpoint of tensors that are split by rows over all ranks."""

    __slots__ = ()

    @property
    def global_shape(self) -> tuple[int, int]:
        """Of each tensor."""
        rows, columns = PART_SHAPE
        return rows * self.ranks, columns


# ---- the decision between local restore and reshard


def save_replicated(checkpoint: Replicated) -> int:
    """Writes the metadata and the file of rank 0.

    The entries come in the order of a save with replicas, which spreads the
    first copies evenly over the files.

    Returns:
        int: size of the metadata file in bytes.
    """
    files = sorted(f'{rank}_0.distcp' for rank in range(checkpoint.ranks))
    offset = (0,) * len(DECIDED_SHAPE)
    storage = {}
    for number, key in enumerate(checkpoint.names()):
        first = files[number % len(files)]
        ordered = [first, *(name for name in files if name != first)]
        for replica_id, name in enumerate(ordered):
            index = LocalTensorIndex(
                key,
                offset,
                replica_id=replica_id,
                local_shape=DECIDED_SHAPE,
            )
            storage[index] = name
    described = LocalTensorMetadata(
        offset, DECIDED_SHAPE, 'float32', DECIDED_SHAPE
    )
    metadata = Metadata(
        {key: [described] for key in checkpoint.names()},
        storage,
        {key: (key,) for key in checkpoint.names()},
    )
    checkpoint.folder.mkdir()
    paddle.save(metadata, str(checkpoint.metadata_path))
    paddle.save(_zeros(checkpoint), str(checkpoint.folder / '0_0.distcp'))
    return checkpoint.metadata_path.stat().st_size


def save_sharded(checkpoint: Sharded) -> int:
    """Writes the metadata, and a file of rank 0 that is empty.

    Returns:
        int: size of the metadata file in bytes.
    """
    shards: dict[str, list[LocalTensorMetadata]] = {}
    storage = {}
    for rank in range(checkpoint.ranks):
        name = f'{rank}_0.distcp'
        offset, shape = [PART_SHAPE[0] * rank, 0], list(PART_SHAPE)
        for key in checkpoint.names():
            # In a save every entry comes with tuples of its own.
            shards.setdefault(key, []).append(
                LocalTensorMetadata(
                    tuple(offset),
                    tuple(shape),
                    'float32',
                    checkpoint.global_shape,
                )
            )
            index = LocalTensorIndex(
                key, tuple(offset), local_shape=tuple(shape)
            )
            storage[index] = name
    metadata = Metadata(shards, storage, {key: (key,) for key in shards})
    checkpoint.folder.mkdir()
    paddle.save(metadata, str(checkpoint.metadata_path))
    (checkpoint.folder / '0_0.distcp').touch()
    return checkpoint.metadata_path.stat().st_size


@functools.cache
def _zeros(
    checkpoint: Replicated,
) -> dict[str, paddle.Tensor | ShardedWeight]:
    """The state dict to restore; kept, a warm process has it already."""
    if isinstance(checkpoint, Sharded):
        return {
            key: ShardedWeight(
                key,
                paddle.zeros(PART_SHAPE, 'float32'),
                PART_SHAPE,
                checkpoint.global_shape,
                (0, 0),
            )
            for key in checkpoint.names()
        }
    return {
        key: paddle.zeros(DECIDED_SHAPE, 'float32')
        for key in checkpoint.names()
    }


def decide_stock(checkpoint: Replicated, state_dict: dict) -> bool | None:
    """As without the fast check: from the whole metadata."""
    manager = MetadataManager()
    manager.set_metadata_list([paddle.load(str(checkpoint.metadata_path))])
    return check_resumable_locally(
        str(checkpoint.folder), state_dict, manager, False, None
    )


def decide_fast(checkpoint: Replicated, state_dict: dict) -> bool | None:
    """From the head of the metadata and the shapes in the file."""
    from paddle.distributed.flex_checkpoint.dcp.fast_resumable import (
        check_resumable_locally_fast,
    )

    return check_resumable_locally_fast(
        str(checkpoint.metadata_path),
        str(checkpoint.folder),
        state_dict,
        False,
    )


def decide_by_storage(checkpoint: Replicated, state_dict: dict) -> bool | None:
    """From stand-ins of the whole metadata's entries."""
    from paddle.distributed.flex_checkpoint.dcp.fast_resumable import (
        check_resumable_locally_by_storage,
    )

    return check_resumable_locally_by_storage(
        str(checkpoint.metadata_path),
        str(checkpoint.folder),
        state_dict,
        False,
    )


def load_metadata(checkpoint: Replicated, without_collector: bool) -> None:
    """Loads and indexes the metadata, as a reshard needs it."""
    manager = MetadataManager()

    def load() -> None:
        manager.set_metadata_list([paddle.load(str(checkpoint.metadata_path))])

    if not without_collector:
        load()
        return
    from paddle.distributed.flex_checkpoint.dcp import storage_reader

    storage_reader.without_collector(load)


def timed_metadata_load(
    checkpoint: Replicated, without_collector: bool
) -> Sample:
    """Loads the metadata once."""
    gc.collect()
    before_bytes = reset_peak_memory()
    begin = time.perf_counter()
    load_metadata(checkpoint, without_collector)
    seconds = time.perf_counter() - begin
    return Sample(seconds, 1, peak_memory() - before_bytes)


def timed_decision(
    decide: Callable[[Replicated, dict], bool | None], checkpoint: Replicated
) -> Sample:
    """Decides once on what can be restored locally.

    Raises:
        VerificationError: the answer is not True.
    """
    logger.setLevel(logging.WARNING)
    state_dict = _zeros(checkpoint)
    gc.collect()
    before_bytes = reset_peak_memory()
    begin = time.perf_counter()
    answer = decide(checkpoint, state_dict)
    seconds = time.perf_counter() - begin
    peak_bytes = peak_memory() - before_bytes
    _expect(decide, True, answer)
    return Sample(seconds, 1, peak_bytes)


def verify_refusal(
    decide: Callable[[Replicated, dict], bool | None], checkpoint: Replicated
) -> None:
    """Asks for a tensor of another shape than is stored.

    Raises:
        VerificationError: the answer is not False.
    """
    logger.setLevel(logging.ERROR)
    state_dict = dict(_zeros(checkpoint))
    state_dict[checkpoint.names()[-1]] = paddle.zeros([3, 5], 'float32')
    _expect(decide, False, decide(checkpoint, state_dict))


def _expect(
    decide: Callable[..., object], expected: bool, answer: object
) -> None:
    if answer is not expected:
        raise VerificationError(
            f'{decide.__name__}: expected {expected}, but received {answer}'
        )


# ---- names and shapes of a file


def scanned_shapes(count: int) -> dict[str, tuple[int, int]]:
    """Of the file to scan: 256 KiB and more each, no two neighbours alike."""
    return {
        f'layer_{number}.weight': (64 + number % 8, 1024)
        for number in range(count)
    }


def save_shapes(path: Path, count: int) -> None:
    """Writes a file to scan."""
    state = {
        key: paddle.zeros(shape, 'float32')
        for key, shape in scanned_shapes(count).items()
    }
    paddle.save(state, str(path))


def shapes_by_load(path: Path) -> tuple[dict[str, tuple[int, ...]], int]:
    """As without a scan: all tensors are loaded."""
    loaded = paddle.load(str(path), return_numpy=True)
    shapes = {key: value.shape for key, value in loaded.items()}
    return shapes, path.stat().st_size


def shapes_by_scan(path: Path) -> tuple[dict[str, tuple[int, ...]], int]:
    """The scan, and how many bytes it reads."""
    from paddle.distributed.flex_checkpoint.dcp.distcp_reader import _scan

    return _scan(str(path))


def timed_scan(
    scan: Callable[[Path], tuple[dict[str, tuple[int, ...]], int]],
    path: Path,
    count: int,
) -> Sample:
    """Learns the shapes once.

    Raises:
        VerificationError: a key or a shape is wrong.
    """
    gc.collect()
    begin = time.perf_counter()
    shapes, bytes_read = scan(path)
    seconds = time.perf_counter() - begin
    expected = scanned_shapes(count)
    if shapes != expected:
        raise VerificationError(
            f'{path}: {scan.__name__}: expected other shapes for '
            f'{len(dict(expected.items() ^ shapes.items()))} keys'
        )
    return Sample(seconds, 1, notes={'bytes_read': bytes_read})


# ---- restoring


def save_state(checkpoint: Checkpoint) -> None:
    """Saves a checkpoint of one rank; its path is the directory."""
    logger.setLevel(logging.WARNING)
    paddle.distributed.save_state_dict(
        {
            key: paddle.to_tensor(value)
            for key, value in checkpoint.expected().items()
        },
        str(checkpoint.path),
    )


@functools.cache
def _destination(checkpoint: Checkpoint) -> dict[str, paddle.Tensor]:
    """The tensors to restore into; kept, a warm process has them already."""
    return {
        key: paddle.empty(value.shape, 'float32')
        for key, value in checkpoint.expected().items()
    }


def has_num_workers() -> bool:
    """Whether load_state_dict takes the option."""
    return 'num_workers' in inspect.signature(load_state_dict).parameters


def restore(
    state_dict: dict[str, paddle.Tensor], path: str, **options: int
) -> None:
    """`load_state_dict`, which tests put something else in place of."""
    load_state_dict(state_dict, path, **options)


def read_alone(
    state_dict: dict[str, paddle.Tensor], path: str, num_threads: int
) -> None:
    """Bare reads of a checkpoint's file to where the tensors are.

    Neither plans nor checks anything: what no restore in place can beat.
    """
    with open(f'{path}/0_0.distcp', 'rb', buffering=0) as f:
        descriptor = f.fileno()
        payloads = io_utils._index_payloads(
            lambda offset, length: os.pread(descriptor, length, offset),
            os.path.getsize(f.name),
        )
        reads = [
            (
                (ctypes.c_char * min(READ_BYTES, payload.length_bytes - begin))
                .from_address(tensor.data_ptr() + begin),
                payload.offset + begin,
            )
            for tensor, payload in zip(
                state_dict.values(), payloads, strict=True
            )
            for begin in range(0, payload.length_bytes, READ_BYTES)
        ]  # fmt: skip
        with ThreadPoolExecutor(num_threads) as pool:
            for _ in pool.map(
                lambda read: os.preadv(descriptor, [read[0]], read[1]), reads
            ):
                pass


def timed_restore(
    restore: Callable[..., None], checkpoint: Checkpoint, **options: int
) -> Sample:
    """Restores once into tensors that exist, and verifies all of them.

    Raises:
        VerificationError: a byte is wrong.
    """
    logger.setLevel(logging.WARNING)
    state_dict = _destination(checkpoint)
    for tensor in state_dict.values():
        tensor.zero_()  # what the last one restored must not pass for this
    gc.collect()
    before_bytes = reset_peak_memory()
    begin = time.perf_counter()
    restore(state_dict, str(checkpoint.path), **options)
    seconds = time.perf_counter() - begin
    peak_bytes = peak_memory() - before_bytes
    return Sample(
        seconds, verify(state_dict, checkpoint, paddle.Tensor), peak_bytes
    )
