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
"""Decide on a local restore from all entries of a ``*.metadata`` file.

Where tensors are split the head of a metadata file does not tell what each
data file holds. Its storage does, and this reads all of it, but not as the
stock check does: the entries become stand-ins of one tuple each instead of
objects with a dict, no index of them is built, and the garbage collector,
which finds nothing in a million new objects, rests meanwhile.

The answer is the stock check's, on any file: a stand-in hashes and compares
as the class that it stands for, so that equal indexes replace each other, and
what that class would refuse is refused. A file that holds anything beside the
plain objects of a checkpoint is not recognised, and the stock check decides.
Nothing that a file names is imported or called.

Memory goes with the number of entries: a tuple and two stand-ins for each, and
16 bytes for each number up to the largest one that the file stores under. What
else the unpickler's memo would keep is let go of meanwhile (``memo_upkeep``),
unless the file is of protocol 2 or 3.

Not here: whether the data file is complete, which the stock check does not
ask; and communication (``fast_resumable``).
"""

from __future__ import annotations

import copyreg
import gc
import io
import operator
import os
import pickle

from paddle.framework.io_utils import _open_regular

from .memo_upkeep import FrameStream, MemoUpkeep
from .metadata import LocalTensorIndex, LocalTensorMetadata, Metadata

# Replicas are alike to the check.
_PLACE_FIELDS = (
    'global_offset',
    'is_flattened',
    'flattened_range',
    'local_shape',
)

_NUM_INDEX_FIELDS = len(LocalTensorIndex.__dataclass_fields__)
_NUM_SHARD_FIELDS = len(LocalTensorMetadata.__dataclass_fields__)


# How a pickle begins that has frames.
_FRAMED = (b'\x80\x04\x95', b'\x80\x05\x95')


def without_collector(function, *args):
    """Call a function while the garbage collector rests.

    The collector is the process's, so other threads go without it too, and
    it runs again when the call ends, however that is. Where calls overlap in
    several threads it runs again when the first of them to begin ends, which
    costs the others time and nothing else; one that was off stays off.
    """
    was_enabled = gc.isenabled()
    try:
        gc.disable()
        return function(*args)
    finally:
        if was_enabled:
            gc.enable()


class _NotRecognised(ValueError):
    """A file is no plain metadata; the message says where."""


class _StandIn:
    """Made by NEWOBJ, as pickle writes it; to call the class is an error."""

    __slots__ = ()

    def __init__(self, *args):
        raise _NotRecognised('a class is called')


def _stand_ins():
    """The classes of one load, and the upkeep of its memo.

    Places are added up before they are hashed, which the stock check does to
    fewer objects: what is more than a number, or numbers in a tuple, is an
    error then, and hashing goes as deep as tuples do, without a limit. It is
    spelt out twice, for it is done a million times.

    Returns:
        tuple[dict[str, type], MemoUpkeep]: By the name of the class that each
        stands for.
    """
    place_of = operator.itemgetter(*_PLACE_FIELDS)

    class Index(_StandIn):
        __slots__ = ('fields',)

        def __setstate__(self, state):
            if len(state) != _NUM_INDEX_FIELDS:
                raise _NotRecognised('an index has other fields')
            key = state['tensor_key']
            if type(key) is not str:
                raise _NotRecognised('a key is no text')
            place = offset, is_flattened, flat_range, shape = place_of(state)
            sum(offset) + is_flattened
            if shape is not None:
                sum(shape)
            if flat_range is not None:
                sum(flat_range)
            self.fields = (
                share(key, key),
                share(place, place),
                state['replica_id'],
            )
            upkeep.unseen += 1

        def __hash__(self):
            return hash(self.fields)

        def __eq__(self, other):
            return type(other) is Index and self.fields == other.fields

    class Shard(_StandIn):
        __slots__ = ('is_hashable',)
        __hash__ = None

        def __setstate__(self, state):
            if len(state) != _NUM_SHARD_FIELDS:
                raise _NotRecognised('a shard has other fields')
            place = offset, is_flattened, flat_range, shape = place_of(state)
            sum(offset) + is_flattened
            if shape is not None:
                sum(shape)
            if flat_range is not None:
                sum(flat_range)
            hash(place)
            self.is_hashable = True
            upkeep.unseen += 1

    class Whole(_StandIn):
        __slots__ = ('state',)
        __hash__ = None

        def __setstate__(self, state):
            if type(state) is not dict:  # BUILD refuses it
                raise _NotRecognised('the state of the whole is no dict')
            self.state = dict(state)  # what follows does not change it

    upkeep = MemoUpkeep((Index, Shard))
    share = upkeep.shared.setdefault
    classes = {
        LocalTensorIndex.__name__: Index,
        LocalTensorMetadata.__name__: Shard,
        Metadata.__name__: Whole,
    }
    return classes, upkeep


class _StandInUnpickler(pickle.Unpickler):
    """Admits the metadata classes, by name, as stand-ins."""

    def __init__(self, file, stand_ins, persistent_load):
        super().__init__(file, encoding='latin1')  # as paddle.load
        # What the process has registered for EXT opcodes goes past find_class
        # once it is cached.
        copyreg.clear_extension_cache()
        self._stand_ins = stand_ins
        self._persistent_load = persistent_load

    def persistent_load(self, pid):
        return self._persistent_load(pid)

    def find_class(self, module, name):
        if module == Metadata.__module__ and name in self._stand_ins:
            return self._stand_ins[name]
        raise _NotRecognised(f'it names {module}.{name}')


def _load_storage(path):
    """The storage as it is, after the checks that the stock index makes."""
    stand_ins, upkeep = _stand_ins()
    try:
        raw = _open_regular(path)
        with io.BufferedReader(raw, raw._blksize) as f:
            stream = f
            if f.peek(3)[:3] in _FRAMED:
                file_bytes = os.fstat(f.fileno()).st_size
                stream = FrameStream(f, file_bytes, upkeep.next_frame)
            whole = _StandInUnpickler(
                stream, stand_ins, upkeep.persistent_load
            ).load()
    finally:
        # The classes are garbage that refers to it until it is collected.
        upkeep.clear()
    index_class, shard_class, whole_class = stand_ins.values()
    if type(whole) is not whole_class:
        raise _NotRecognised('it holds something else')
    shards_of = whole.state['state_dict_metadata']
    storage = whole.state['storage_metadata']
    for field in (shards_of, storage):
        # An empty one might be a state as well.
        if type(field) is not dict or not field:
            raise _NotRecognised('a field is empty or no dict')
    if set(map(type, storage)) != {index_class}:
        raise _NotRecognised('the storage has other keys')
    set(storage.values())  # the stock index hashes them
    for shards in shards_of.values():
        _check_shards(shards, shard_class)
    return storage


def _check_shards(shards, shard_class):
    is_hashable = operator.attrgetter('is_hashable')  # unset without a state
    if (
        type(shards) is not list
        or not {shard_class}.issuperset(map(type, shards))
        or not all(map(is_hashable, shards))
    ):
        raise _NotRecognised('a tensor has other shards')


def read_stored_places(path, file_name):
    """Find what a metadata file ascribes to one data file.

    Args:
        path (str): The metadata file.
        file_name (str): Name of the data file.

    Returns:
        set[tuple]: (tensor_key, global_offset, is_flattened, flattened_range,
        local_shape) of each tensor.

    Raises:
        OSError: The file cannot be read.
        Exception: Of any class, for a file that is not recognised.
    """
    storage = without_collector(_load_storage, path)
    return {
        (key, *place)
        for key, place, _ in (
            index.fields for index, name in storage.items() if name == file_name
        )
    }
