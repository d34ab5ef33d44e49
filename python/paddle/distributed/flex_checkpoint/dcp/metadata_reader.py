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
"""Read the head of a checkpoint's ``*.metadata`` file, not all of it.

``Metadata`` is pickled as an object whose state is a dict in field order:
``state_dict_metadata`` (one entry per key), then ``storage_metadata`` (one
entry per key and rank, often a hundred times larger), then ``flat_mapping``.
The file is read frame by frame until the opcode that pushes the next field's
key; that opcode's first two bytes are overwritten with TUPLE2 and STOP, so
that the unpickler hands over the last complete field as ``(key, value)``. A
tensor may bear a field's name, and then the first place is a wrong one: what
comes out is checked, and the search goes on.

Memory goes with the part of the file that is read, except that the
unpickler's memo takes 16 bytes for each number up to the largest one that the
file stores under: 64 GiB at most, if the file is made or damaged so. Nothing
but the three metadata classes is looked up, and nothing that a file names is
imported.

Not here: which file holds a tensor is only sampled; deciding with what was
read is ``fast_resumable``'s part.
"""

from __future__ import annotations

import copyreg
import functools
import io
import os
import pickle
import pickletools
import re
from typing import NamedTuple

import paddle
from paddle.framework.io_utils import (
    _open_regular,
    _raise_signalled,
    _read_at,
)

from .metadata import LocalTensorIndex, LocalTensorMetadata, Metadata

# Releases up to 3.2 kept the classes in another module, which is gone.
_OLDER_MODULE = 'paddle.distributed.checkpoint.metadata'
_MODULES = (Metadata.__module__, _OLDER_MODULE)


class _NotCalled(type):
    """Of a class that NEWOBJ makes objects of, but a call does not."""

    def __call__(cls, *args):
        raise TypeError('expected NEWOBJ, but received a call of a class')


def _maker(cls):
    """A class that makes objects of another, as unpickling does.

    The other is not given out: a file could set attributes of it with BUILD,
    for the whole process.
    """

    class Maker(metaclass=_NotCalled):
        __slots__ = ()

        def __new__(cls_of_maker):
            return object.__new__(cls)

        def __setstate__(self, state):
            raise TypeError('expected an object to have the state')

    return Maker


_MAKERS = {
    (module, cls.__name__): _maker(cls)
    for module in _MODULES
    for cls in (LocalTensorIndex, LocalTensorMetadata, Metadata)
}

# The fields that may follow `state_dict_metadata`, as SHORT_BINUNICODE writes
# their names (protocol 4 and later) and as BINUNICODE does (2 and 3).
_NEXT_FIELD = re.compile(
    b'|'.join(
        re.escape(opcode + len(name).to_bytes(size, 'little') + name)
        for name in (b'storage_metadata', b'flat_mapping')
        for opcode, size in ((b'\x8c', 1), (b'X', 4))
    )
)
_LONGEST_FIELD_BYTES = len(b'X....storage_metadata')

# What may stand between the push of a value and the next push.
_MEMO_PUTS = ('MEMOIZE', 'BINPUT', 'LONG_BINPUT', 'FRAME')

# Each try unpickles the head again, and a file could name the field in every
# key. A checkpoint has a wrong place per tensor that bears a field's name.
_MAX_CUTS = 8

# What is read at once from a stream without frames: the size of a frame.
_CHUNK_BYTES = 64 * 1024

_FRAME_HEADER_BYTES = 9


class _MetadataHead(NamedTuple):
    """What the first part of a metadata file says.

    `storage_metadata` is None unless the part that was read is the whole
    file; else `first_index` is the first entry of the storage, None if what
    follows is something else, and `tail` holds the bytes read behind the cut.
    """

    state_dict_metadata: dict[str, list[LocalTensorMetadata]]
    storage_metadata: dict[LocalTensorIndex, str] | None
    first_index: LocalTensorIndex | None
    tail: bytes
    is_older: bool
    bytes_read: int


class _SplitTensor(Exception):
    """A tensor is not stored whole, and the head was to tell no more."""


class _WholeShard:
    """Ends the unpickling with the first shard that is but a part."""

    def __setstate__(self, state):
        if state['local_shape'] != state['global_shape']:
            raise _SplitTensor


class _MetadataUnpickler(pickle.Unpickler):
    """Admits the metadata classes, by name, and nothing else."""

    def __init__(self, data):
        super().__init__(io.BufferedReader(io.BytesIO(data), 4096))
        # What the process has registered for EXT opcodes goes past find_class
        # once it is cached.
        copyreg.clear_extension_cache()
        self.is_older = False

    def find_class(self, module, name):
        found = _MAKERS.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(
                f'expected a metadata class, but received {module}.{name}'
            )
        self.is_older |= module == _OLDER_MODULE
        return found


class _WholeUnpickler(_MetadataUnpickler):
    """Does not go on where a tensor is split."""

    def find_class(self, module, name):
        found = super().find_class(module, name)
        is_shard = name == LocalTensorMetadata.__name__
        return _WholeShard if is_shard else found


class _HeadReader:
    """The first part of a file, in a buffer that grows by whole frames."""

    def __init__(self, read_at, file_bytes):
        self._read_at = read_at
        self._file_bytes = file_bytes
        self.buffer = bytearray(read_at(0, 2))
        self.last_start = 0
        self._has_frames = self.buffer[:1] == pickle.PROTO and (
            self.buffer[1:] >= b'\x04'
        )

    @property
    def is_whole(self):
        return len(self.buffer) == self._file_bytes

    def extend(self):
        """Read one frame more; False if there is none, or not all of it."""
        self.last_start = len(self.buffer)
        length = _CHUNK_BYTES
        if self._has_frames:
            header = self._read_at(len(self.buffer), _FRAME_HEADER_BYTES)
            self._has_frames = header[:1] == pickle.FRAME
            self.buffer += header
        if self._has_frames:
            length = int.from_bytes(header[1:], 'little')
            if length > self._file_bytes - len(self.buffer):
                return False
        data = self._read_at(len(self.buffer), length)
        self.buffer += data
        return bool(data)


def _find_cut(head, take, check_beginning=None):
    """Read on until a next field's key at which the stream can be cut.

    Args:
        head (_HeadReader): At the start of the file.
        take (callable): (head, place) -> what is wanted if the key at that
            place follows `state_dict_metadata`, else None.
        check_beginning (callable|None): Is given the head when it begins.

    Returns:
        object: What `take` gave; None where it gave nothing.
    """
    cuts = searched = 0
    while head.extend():
        if check_beginning is not None:
            check_beginning(head)
            check_beginning = None
        places = [
            match.start()
            for match in _NEXT_FIELD.finditer(head.buffer, searched)
        ]
        searched = max(0, len(head.buffer) - _LONGEST_FIELD_BYTES + 1)
        for place in places:
            found = take(head, place)
            if found is not None:
                return found
            cuts += 1
            if cuts == _MAX_CUTS:
                return None
    return None


def _load_cut(buffer, place, opcodes):
    """Unpickle what the opcodes, put at `place`, make of the stack there.

    Returns:
        tuple|None: (the fields and what follows, whether an older module is
        named); None if it is not the state of a Metadata up to there.
    """
    data = bytearray(buffer)
    data[place : place + len(opcodes)] = opcodes
    unpickler = _MetadataUnpickler(data)
    try:
        key, shards, *following = unpickler.load()
    except Exception as error:  # bytes that are no pickle raise any error
        _raise_signalled(error)
        return None
    if key != 'state_dict_metadata' or not _is_state_dict_metadata(shards):
        return None
    return (shards, *following), unpickler.is_older


def _is_state_dict_metadata(value):
    if not isinstance(value, dict):
        return False
    for key, shards in value.items():
        if not isinstance(key, str) or not isinstance(shards, list):
            return False
        for shard in shards:
            if not isinstance(shard, LocalTensorMetadata):
                return False
    return True


def _take_state_dict_metadata(head, place):
    found = _load_cut(head.buffer, place, pickle.TUPLE2 + pickle.STOP)
    return found and found[0][0]


def _take_head(head, place):
    if place >= head.last_start:  # else a place before has extended it
        head.extend()
    if head.is_whole:
        return _load_whole(head, place)
    found = _load_cut(
        head.buffer,
        _after_first_entry(head.buffer, place),
        # Two marks are open there: the storage's entries, the fields.
        pickle.TUPLE + pickle.TUPLE + pickle.STOP,
    )
    if found is None:
        return None
    (shards, *following), is_older = found
    first_index = None
    if len(following) == 3 and following[0] == 'storage_metadata':
        first_index = following[2][0]
    if type(first_index) is not LocalTensorIndex:
        first_index = None
    return _MetadataHead(
        shards,
        None,
        first_index,
        bytes(head.buffer[place:]),
        is_older,
        len(head.buffer),
    )


def _load_whole(head, place):
    unpickler = _MetadataUnpickler(head.buffer)
    try:
        metadata = unpickler.load()
        shards, storage = (
            metadata.state_dict_metadata,
            metadata.storage_metadata,
        )
    except Exception as error:  # as in _load_cut
        _raise_signalled(error)
        return None
    if not _is_state_dict_metadata(shards) or not isinstance(storage, dict):
        return None
    return _MetadataHead(
        shards,
        storage,
        None,
        bytes(head.buffer[place:]),
        unpickler.is_older,
        len(head.buffer),
    )


def _after_first_entry(buffer, place):
    """Where the storage's second entry begins; 0 if that is not plain.

    An entry is an index, which ends with BUILD, and the push of a file name.
    """
    names = iter(())
    try:
        operations = pickletools.genops(io.BytesIO(buffer[place:]))
        names = ((op.name, at) for op, _, at in operations)
        for name, _ in names:
            if name == 'BUILD':
                break
        next(names)
        for name, at in names:
            if name not in _MEMO_PUTS:
                return place + at
    except (ValueError, StopIteration):  # the buffer ends before it
        pass
    return 0


def _open_head(fd):
    """A reader of the head, None for a file that has no proper end."""
    file_bytes = os.fstat(fd).st_size
    read_at = functools.partial(_read_at, fd)
    # An object that was pickled to the end closes with BUILD and STOP.
    if read_at(max(0, file_bytes - 2), 2) != pickle.BUILD + pickle.STOP:
        return None
    # A cut may end so by chance; it then ends within a frame.
    end = 2
    while file_bytes > _CHUNK_BYTES and end < file_bytes:
        header = read_at(end, _FRAME_HEADER_BYTES)
        if header[:1] != pickle.FRAME:
            break
        end += len(header) + int.from_bytes(header[1:], 'little')
    if end > file_bytes:
        return None
    return _HeadReader(read_at, file_bytes)


def _read_metadata_head(path):
    """Read a metadata file to one frame past the end of its first field.

    Args:
        path (str): The metadata file.

    Returns:
        _MetadataHead|None: None where the first field cannot be cut out.

    Raises:
        OSError: the file cannot be read.
        _SplitTensor: a tensor at the beginning is not stored whole; not if
            the beginning is all of the file.
    """
    with _open_regular(path) as f:
        head = _open_head(f.fileno())
        if head is None:
            return None
        return _find_cut(head, _take_head, _check_beginning)


def _check_beginning(head):
    """Spare the rest if split tensors come first: it may be half the file."""
    if not head.is_whole:
        try:
            _WholeUnpickler(head.buffer).load()
        except _SplitTensor:
            raise
        except Exception as error:  # it has no end
            _raise_signalled(error)


def load_state_dict_metadata(
    path: str, allow_full_load: bool = True
) -> dict[str, list[LocalTensorMetadata]] | None:
    """
    Load the description of every tensor in a distributed checkpoint: shape,
    offset and dtype of its shards. Of the metadata file only the part that
    holds it is read, which is a small one if the checkpoint was saved by many
    ranks.

    Args:
        path(str): The metadata file, e.g. ``./checkpoint/0.metadata``; not the directory.
        allow_full_load(bool, optional): Whether to load the whole file with ``paddle.load`` where a part does not do, which may take long and needs the memory for all of it. If False, None is returned then. Default is True.

    Returns:
        dict[str, list[LocalTensorMetadata]]: The shards of each key. None if ``allow_full_load`` is False and the whole file would have to be loaded.

    Raises:
        OSError: If the file cannot be read; a FileNotFoundError if it does not exist.
        ValueError: If the file does not hold the metadata of a checkpoint.

    Examples:
        .. code-block:: python

            >>> import os
            >>> import tempfile
            >>> import paddle
            >>> import paddle.distributed as dist
            >>> with tempfile.TemporaryDirectory() as path:
            ...     dist.save_state_dict({"w": paddle.ones([4, 8])}, path)
            ...     shards = dist.load_state_dict_metadata(
            ...         os.path.join(path, "0.metadata")
            ...     )
            >>> print(shards["w"][0].global_shape, shards["w"][0].dtype)
            (4, 8) float32
    """
    with _open_regular(path) as f:
        head = _open_head(f.fileno())
        found = head and _find_cut(head, _take_state_dict_metadata)
    if found is not None:
        return found
    if not allow_full_load:
        return None
    try:
        metadata = paddle.load(path)
    except OSError:
        raise
    except Exception as error:  # paddle.load raises what unpickling raises
        _raise_signalled(error)
        raise ValueError(
            f'Expected {path} to hold the Metadata of a checkpoint, but it '
            f'cannot be loaded: {type(error).__name__}: {error}'
        ) from error
    shards = getattr(metadata, 'state_dict_metadata', None)
    if not isinstance(metadata, Metadata) or not _is_state_dict_metadata(
        shards
    ):
        raise ValueError(
            f'Expected {path} to hold the Metadata of a checkpoint, but '
            f'received {type(metadata).__name__} with state_dict_metadata '
            f'of {type(shards).__name__}.'
        )
    return shards
