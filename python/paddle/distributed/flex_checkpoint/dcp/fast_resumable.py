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
"""Decide quickly whether every rank can restore from its own ``.distcp``.

The stock check unpickles the whole metadata file and indexes every entry of
every rank to learn one boolean. Where all tensors of a checkpoint are stored
whole, the head of the metadata and the shapes in the rank's own file tell the
same: the state dict must want what the metadata describes, and the file must
hold it. Everything else is declined (None). Then a second check reads all of
the metadata, at a part of the stock check's cost and with its answer; what it
declines too, the stock check decides.

The second answer is the stock check's on any file. The first is no more
permissive where the metadata fits in what was read: that it ascribes each
tensor to this rank's file is looked up, entry by entry, as the stock check
does. In a larger one it is inferred from its first entries: it was saved with
replicas (or one process alone has to restore it), and names this file. There
a complete file that holds all wanted tensors whole passes even if the entries
that were not read are damaged, or ascribe some of them to other files alone,
as they do after a later save with another layout into the same directory,
which leaves the metadata as it is.

Not here: loading, and the metadata manager (``load_state_dict``).
"""

from __future__ import annotations

import operator
import os
import re
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import paddle
from paddle.distributed.fleet.utils.log_util import logger
from paddle.framework.io_utils import _is_regular, _raise_signalled

from .distcp_reader import _scan
from .metadata import LocalTensorIndex
from .metadata_reader import _read_metadata_head, _SplitTensor
from .rank_failures import failure_told
from .storage_reader import read_stored_places, without_collector
from .utils import extract_tensor_metadata

if TYPE_CHECKING:
    from paddle import Tensor
    from paddle.distributed.collective import Group

    from .metadata import LocalTensorMetadata
    from .sharded_weight import ShardedWeight

# Names of data files where pickle spells them: SHORT_BINUNICODE or BINUNICODE,
# the length, the text. Further uses of a name refer back to it.
_DATA_FILE_NAME = re.compile(
    rb'(?:\x8c(.)|X(.)\0\0\0)(\d+_\d+\.distcp)', re.DOTALL
)


class _Verdict(NamedTuple):
    """What one rank finds out alone; `answer` is None where it declines.

    With `is_damage` the file is not what the metadata says it is.
    """

    answer: bool | None
    reason: str
    is_damage: bool = False


class _Declined(Exception):
    """The fast check does not apply; the message says why."""


def is_unsharded_state_dict_metadata(
    state_dict_metadata: dict[str, list[LocalTensorMetadata]],
) -> bool:
    """
    Whether every tensor of a checkpoint is stored whole: it has one shard,
    which is not flattened and has no offset and the global shape.

    Args:
        state_dict_metadata(dict[str, list[LocalTensorMetadata]]): The shards of each key, as ``load_state_dict_metadata`` returns them.

    Returns:
        bool: True if none is split; True for an empty dict. False also where a shard does not say, e.g. has no global shape.
    """
    return _first_split_key(state_dict_metadata) is None


def _first_split_key(state_dict_metadata):
    for key, shards in state_dict_metadata.items():
        if not (
            isinstance(shards, list)
            and len(shards) == 1
            and _is_whole(shards[0])
        ):
            return key
    return None


def _is_whole(shard):
    try:
        shape = shard.local_shape
        return (
            type(shape) is tuple
            and shard.global_shape == shape
            and shard.global_offset == (0,) * len(shape)
            and shard.is_flattened is False
            and shard.flattened_range is None
        )
    except AttributeError:  # no shard, or one that lacks a field
        return False


class _Place(NamedTuple):
    """What the stock check compares of a tensor, beside its key."""

    global_offset: tuple[int, ...]
    is_flattened: bool
    flattened_range: tuple[int, int] | None
    local_shape: tuple[int, ...]


_place_of = operator.attrgetter(*_Place._fields)  # equal to a _Place


def wanted_place(value):
    """Where a value of the state dict lies; None if not on this rank."""
    if isinstance(value, paddle.Tensor) and not value.is_dist():
        # The frequent case of the general way below, at a quarter of its time.
        if not value._is_initialized():
            return None
        shape = tuple(value.shape)
        return _Place((0,) * len(shape), False, None, shape)
    _, shard = extract_tensor_metadata(value)
    return shard and _Place(*_place_of(shard))


def _wanted_places(state_dict):
    wanted = {}
    for key, value in state_dict.items():
        try:
            place = wanted_place(value)
        except Exception as error:  # the stock check then fails on it in turn
            raise _Declined(
                f'{key!r} has no local tensor: {type(error).__name__}: {error}'
            ) from error
        if place is not None:
            wanted[key] = place
    return wanted


def _split_plain(state_dict):
    """Part the shapes of tensors that are not distributed from all else.

    Whether they are initialized, which takes a third of the time, is left
    open: one that is not need not be restored, and is looked at again where
    it does not fit.
    """
    tensor_class, shapes, others = paddle.Tensor, {}, {}
    for key, value in state_dict.items():
        if isinstance(value, tensor_class) and not value.is_dist():
            shapes[key] = tuple(value.shape)
        else:
            others[key] = value
    return shapes, others


def _mismatch(place, stored_shards, file_shape):
    """Why a tensor cannot be restored from the rank's own file, else None."""
    if stored_shards is None:
        return 'it is missing in the metadata'
    stored = _place_of(stored_shards[0])
    if place != stored:
        return _difference(place, _Place(*stored))
    if file_shape is None:
        return 'it is missing in the file'
    if file_shape != place.local_shape:
        return (
            f'expected shape {place.local_shape}, but the file has {file_shape}'
        )
    return None


def _difference(place, stored):
    """In what a wanted place and a stored one, which are not equal, differ."""
    if (place.is_flattened, place.flattened_range) != (
        stored.is_flattened,
        stored.flattened_range,
    ):
        wanted_form, stored_form = (
            f'flattened, range {form.flattened_range}'
            if form.is_flattened or form.flattened_range is not None
            else 'not flattened'
            for form in (place, stored)
        )
        return f'expected it {wanted_form}, but it is stored {stored_form}'
    if place.local_shape != stored.local_shape:
        return (
            f'expected shape {place.local_shape}, '
            f'but the metadata has {stored.local_shape}'
        )
    return (
        f'expected offset {place.global_offset}, '
        f'but it is stored at {stored.global_offset}'
    )


def _not_ascribed(head, file_name, wanted):
    """Why a tensor is not this file's according to the whole metadata."""
    if not {LocalTensorIndex}.issuperset(map(type, head.storage_metadata)):
        raise _Declined('the storage has other keys')
    set(head.storage_metadata.values())  # the stock index hashes them
    ascribed = {
        (index.tensor_key, _place_of(index))
        for index, name in head.storage_metadata.items()
        if name == file_name
    }
    return {
        key: f'the metadata does not ascribe it to {file_name}'
        for key, place in wanted.items()
        if (key, place) not in ascribed
    }


def _check_first_entries(head, file_name, use_dist):
    """Decline where the first entries leave it open whose the tensors are."""
    index = head.first_index
    if index is None:
        raise _Declined('no index of a tensor follows in the metadata')
    if index.local_shape is None:
        raise _Declined('the metadata does not tell the shapes in each file')
    if use_dist and type(index.replica_id) is not int:
        raise _Declined('the checkpoint was saved without replicas')
    names = {
        name.decode()
        for short, long, name in _DATA_FILE_NAME.findall(head.tail)
        if (short or long) == bytes([len(name)])
    }
    if file_name not in names:
        raise _Declined(f'the first entries do not name {file_name}')
    if not use_dist and index.replica_id is None and len(names) > 1:
        raise _Declined('the tensors are spread over several files')


def _read_head(metadata_path):
    try:
        head = _read_metadata_head(metadata_path)
    except OSError as error:
        raise _Declined(
            f'{metadata_path} cannot be read: '
            f'{_without_path(error, metadata_path)}'
        ) from error
    except _SplitTensor as error:
        raise _Declined('a tensor is not stored whole') from error
    if head is None:
        raise _Declined(f'{metadata_path} cannot be read in part')
    if head.is_older:
        raise _Declined(f'{metadata_path} is of an older release')
    split_key = _first_split_key(head.state_dict_metadata)
    if split_key is not None:
        raise _Declined(f'{split_key!r} is not stored whole')
    return head


def _refusal(mismatches, file_path):
    key, reason = next(iter(mismatches.items()))
    others = len(mismatches) - 1
    more = f'; {_count(others, "other")} as well' if others else ''
    return _Verdict(False, f'{key!r} of {file_path}: {reason}{more}')


def _count(number, noun):
    return f'{number} {noun}' if number == 1 else f'{number} {noun}s'


def _without_path(error, path):
    """What an error says, without the path that the reader has been told."""
    text = getattr(error, 'strerror', None) or str(error)
    return f'{type(error).__name__}: {text.removeprefix(f"{path}: ")}'


def own_file(path, use_dist):
    """Name and path of what a local restore loads, whatever the unique id."""
    rank = paddle.distributed.get_rank() if use_dist else 0
    file_name = f'{rank}_0.distcp'
    return file_name, os.path.join(path, file_name)


def _decide(metadata_path, path, state_dict, use_dist):
    """This rank's verdict, without communication."""
    started_s = time.perf_counter()
    head = _read_head(metadata_path)
    wanted_shapes, others = _split_plain(state_dict)
    wanted = _wanted_places(others)
    file_name, file_path = own_file(path, use_dist)
    if not _is_regular(file_path):
        return _Verdict(False, f'{file_path} is missing or not a file')
    try:
        file_shapes, scanned_bytes = _scan(file_path)
    except Exception as error:  # another rank must not wait for this one
        _raise_signalled(error)
        return _Verdict(
            False,
            f'{file_path} is unreadable: {_without_path(error, file_path)}',
            is_damage=True,
        )
    count = len(wanted_shapes) + len(wanted)
    stored_shapes = {
        key: shards[0].local_shape
        for key, shards in head.state_dict_metadata.items()
    }
    # All stored tensors are whole, and so are these: shapes tell everything.
    if head.storage_metadata is not None or not (
        wanted_shapes.items() <= file_shapes.items()
        and wanted_shapes.items() <= stored_shapes.items()
    ):
        wanted = _wanted_places(state_dict)
        count = len(wanted)
    mismatches = {
        key: reason
        for key, place in wanted.items()
        if (
            reason := _mismatch(
                place, head.state_dict_metadata.get(key), file_shapes.get(key)
            )
        )
    }
    if not mismatches:
        if head.storage_metadata is not None:
            mismatches = _not_ascribed(head, file_name, wanted)
        else:
            _check_first_entries(head, file_name, use_dist)
    if mismatches:
        return _refusal(mismatches, file_path)._replace(
            is_damage=any(
                file_shapes.get(key, shape) != shape
                for key, shape in stored_shapes.items()
            )
        )
    elapsed_ms = (time.perf_counter() - started_s) * 1e3
    return _Verdict(
        True,
        f'{_count(count, "tensor")}; read {head.bytes_read} bytes of '
        f'{metadata_path} and {scanned_bytes} bytes of {file_path} '
        f'in {elapsed_ms:.1f} ms',
    )


def check_resumable_locally_fast(
    metadata_path: str,
    path: str,
    state_dict: dict[str, Tensor] | dict[str, ShardedWeight],
    use_dist: bool,
    process_group: Group | None = None,
) -> bool | None:
    """
    Decide whether every rank can restore a checkpoint from its own file,
    ``{rank}_0.distcp``, without loading the whole metadata. The reason for
    the answer is logged.

    All ranks must call it. If it applies, each rank takes part in one
    ``all_gather_object`` of a bool; if it declines, in none, and the check
    that has to follow issues the same one.

    It never answers True where the stock check would say no, given metadata
    that is complete and undamaged, from one save. Of a large metadata file
    only the first part is read: what is behind it, and that it is what the
    save wrote, is taken on trust, where the stock check would come upon it.
    In return the rank's own file is looked into, which the stock check does
    not do: that it is complete and holds each tensor in its shape.

    Args:
        metadata_path(str): The metadata file of the checkpoint.
        path(str): The directory of the checkpoint.
        state_dict(dict[str, Tensor]|dict[str, ShardedWeight]): What is to be restored. It is not changed.
        use_dist(bool): Whether more than one rank restores.
        process_group(Group|None, optional): The ranks that restore. Default is None, all of them.

    Returns:
        bool|None: Whether all ranks can restore locally. None where the fast check does not apply and another has to decide: a tensor is split, or the metadata cannot be read in part.

    Raises:
        RankFailedError: Another rank, in whatever check, has failed.
    """
    return _answer(
        'fast check', _decide, metadata_path, path, state_dict, use_dist,
        process_group,
    )  # fmt: skip


def check_resumable_locally_by_storage(
    metadata_path, path, state_dict, use_dist, process_group=None
):
    """Decide whether every rank can restore from its own file, split or not.

    The answer is the stock check's, from the whole metadata, but with less
    made of it. Communication is that of `check_resumable_locally_fast`.

    Args:
        metadata_path (str): The metadata file of the checkpoint.
        path (str): The directory of the checkpoint.
        state_dict (dict): What is to be restored. It is not changed.
        use_dist (bool): Whether more than one rank restores.
        process_group (Group|None): The ranks that restore; None for all.

    Returns:
        bool|None: Whether all ranks can restore locally. None where this
        rank's metadata is not recognised; the stock check has to decide.
    """
    return _answer(
        'check by storage', _decide_by_storage, metadata_path, path,
        state_dict, use_dist, process_group,
    )  # fmt: skip


def _decide_by_storage(metadata_path, path, state_dict, use_dist):
    """This rank's verdict from all that the metadata has about its file."""
    started_s = time.perf_counter()
    wanted = _wanted_places(state_dict)
    file_name, file_path = own_file(path, use_dist)
    if not _is_regular(file_path):
        return _Verdict(False, f'{file_path} is missing or not a file')
    stored = read_stored_places(metadata_path, file_name)
    missing = {
        key: place
        for key, place in wanted.items()
        if (key, *place) not in stored
    }
    if missing:
        first = next(iter(missing))
        others = [_Place(*place) for key, *place in stored if key == first]
        missing[first] = (
            _difference(missing[first], others[0])
            if others
            else f'the metadata does not ascribe it to {file_name}'
        )
        return _refusal(missing, file_path)
    elapsed_ms = (time.perf_counter() - started_s) * 1e3
    return _Verdict(
        True,
        f'{_count(len(wanted), "tensor")}; read {os.path.getsize(metadata_path)} bytes '
        f'of {metadata_path} in {elapsed_ms:.1f} ms',
    )


def require_bool(name, value):
    """Refuse an option that is no bool, before anything is read.

    Raises:
        TypeError: It is neither a bool nor numpy's.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(
            f'The type of `{name}` is expected to be bool, '
            f'but received {type(value).__name__}: {value!r}.'
        )


def _answer(
    check, decide, metadata_path, path, state_dict, use_dist, process_group
):
    """The answer of all ranks, None if this one declines; both are logged."""
    with failure_told(path, process_group, use_dist):
        verdict = _verdict(decide, metadata_path, path, state_dict, use_dist)
        told = f"'{path}'"
        if use_dist:
            told = f'rank {paddle.distributed.get_rank()}: {told}'
        if verdict.answer is None:
            logger.info(
                f'{told}: the {check} does not apply: {verdict.reason}.'
            )
            return None
    answers = [verdict.answer]
    if use_dist:
        answers = []
        paddle.distributed.all_gather_object(
            answers, verdict.answer, process_group
        )
    if all(answers):
        logger.info(f'{told} is resumable locally: {verdict.reason}.')
        return True
    reason = verdict.reason
    if verdict.answer:
        reason = _who_cannot(answers, process_group)
    log = logger.warning if verdict.is_damage else logger.info
    log(f'{told} is not resumable locally: {reason}.')
    return False


def _verdict(decide, *checked):
    """What a check finds out alone; where it fails, it does not apply."""
    try:
        return without_collector(decide, *checked)
    except _Declined as declined:
        _raise_signalled(declined)
        return _Verdict(None, str(declined))
    except Exception as error:  # the stock check is right for all that is left
        _raise_signalled(error)
        return _Verdict(None, f'{type(error).__name__}: {error}')


def _who_cannot(answers, process_group):
    """Which of the ranks that were asked said no."""
    index = answers.index(False)
    rank = process_group.ranks[index] if process_group else index
    others = answers.count(False) - 1
    more = f' and {_count(others, "other")}' if others else ''
    return f'rank {rank}{more} cannot'
