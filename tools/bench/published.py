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

"""Two published designs of a parallel load, written anew to compare with.

Both are file objects for the C unpickler, which reads each large payload with
one call of `readinto` into an object that it has just made. Neither is meant
to be used:

- `DeferredFile` notes where the payloads go, and all are filled when the
  stream has been parsed. Until then the objects hold whatever their memory
  held, which a reducer may look at; and an object that is gone by then leaves
  its memory to be written to all the same.
- `FillingFile` fills each payload in parallel before `readinto` returns. That
  is right, but between two payloads all threads wait for the unpickler.
"""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO

from .common import BenchError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Payloads below this are read as they come.
MIN_PAYLOAD_BYTES = 1 << 20

# As our loader: large enough to hide the cost of a task, small enough that
# the last thread is not waited for.
PIECE_BYTES = 16 << 20

# A payload of less than this per thread goes to fewer threads.
MIN_PIECE_BYTES = 1 << 20


class _ParallelFile:
    """Passes on what is small."""

    def __init__(self, f: BinaryIO, num_workers: int) -> None:
        self._f = f
        self.num_workers = num_workers
        self.read = f.read
        self.readline = f.readline
        self.filled_bytes = 0
        self.pool = ThreadPoolExecutor(num_workers)

    def readinto(self, buffer: memoryview) -> int:
        """Reads a payload, or arranges that it will be read."""
        if len(buffer) < MIN_PAYLOAD_BYTES:
            return self._f.readinto(buffer)
        offset = self._f.tell()
        self.take(offset, buffer)
        self._f.seek(offset + len(buffer))
        return len(buffer)

    def take(self, offset: int, buffer: memoryview) -> None:
        """Is told of a large payload."""
        raise NotImplementedError

    def fill(self, pieces: Iterator[tuple[int, memoryview]]) -> None:
        """Reads pieces in parallel, each given by its offset in the file."""
        for count in self.pool.map(self._fill_piece, pieces):
            self.filled_bytes += count

    def _fill_piece(self, piece: tuple[int, memoryview]) -> int:
        offset, view = piece
        done = 0
        while done < len(view):
            count = os.preadv(self._f.fileno(), [view[done:]], offset + done)
            if not count:
                raise pickle.UnpicklingError('pickle data was truncated')
            done += count
        return done

    def finish(self) -> None:
        """Is told that the stream has been parsed."""


def cut(
    offset: int, buffer: memoryview, piece_bytes: int
) -> Iterator[tuple[int, memoryview]]:
    """A payload in pieces of at most so many bytes."""
    for start in range(0, len(buffer), piece_bytes):
        yield offset + start, buffer[start : start + piece_bytes]


class DeferredFile(_ParallelFile):
    """Fills all payloads after the parse."""

    def __init__(self, f: BinaryIO, num_workers: int) -> None:
        super().__init__(f, num_workers)
        self._deferred: list[tuple[int, memoryview]] = []

    def take(self, offset: int, buffer: memoryview) -> None:
        """Notes where the payload goes."""
        self._deferred.append((offset, buffer))

    def finish(self) -> None:
        """Fills them all."""
        self.fill(
            piece
            for offset, buffer in self._deferred
            for piece in cut(offset, buffer, PIECE_BYTES)
        )


class FillingFile(_ParallelFile):
    """Fills each payload before the unpickler goes on."""

    def take(self, offset: int, buffer: memoryview) -> None:
        """Shares the payload out between the threads."""
        share_bytes = -(-len(buffer) // self.num_workers)
        self.fill(cut(offset, buffer, max(share_bytes, MIN_PIECE_BYTES)))


def load_with(
    file_class: type[_ParallelFile], f: BinaryIO, num_workers: int
) -> Any:
    """Unpickles an open file through one of the designs.

    Raises:
        BenchError: no payload came by, so that nothing is measured.
    """
    file = file_class(f, num_workers)
    with file.pool:
        value = pickle.Unpickler(file, encoding='latin1').load()
        file.finish()
    if not file.filled_bytes:
        raise BenchError(
            f'{f.name}: expected payloads of {MIN_PAYLOAD_BYTES} bytes or '
            f'more for {file_class.__name__}, but found none'
        )
    return value
