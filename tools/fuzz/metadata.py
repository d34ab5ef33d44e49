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

"""What is compared for `*.metadata` files."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp import memo_upkeep, metadata_reader
from paddle.distributed.flex_checkpoint.dcp.fast_resumable import (
    check_resumable_locally_by_storage,
    check_resumable_locally_fast,
)
from paddle.distributed.flex_checkpoint.dcp.metadata import Metadata
from paddle.distributed.flex_checkpoint.dcp.metadata_manager import (
    MetadataManager,
)
from paddle.distributed.flex_checkpoint.dcp.utils import (
    check_resumable_locally,
)

from . import restricted, streams
from .compare import Check, Result, case, shown, steady
from .seeds import CHECKPOINT_SHAPES, PLAIN_SHAPES

if TYPE_CHECKING:
    from collections.abc import Iterator

_NEXT_FIELDS = ('storage_metadata', 'flat_mapping')


@functools.lru_cache(maxsize=1)
def _data_file():
    arrays = {key: np.ones(s, 'f4') for key, s in CHECKPOINT_SHAPES.items()}
    return pickle.dumps(arrays, 4)


def _state_dict(twist):
    """Tensors for what the checkpoint holds, or for something else."""
    shapes = dict(PLAIN_SHAPES)
    if twist == 'shape':
        shapes['b'] = (5,)
    elif twist == 'key':
        shapes['c'] = (2,)
    elif twist == 'fewer':
        del shapes['b']
    elif twist == 'all':
        shapes.update(CHECKPOINT_SHAPES)
    return {key: paddle.ones(list(shape)) for key, shape in shapes.items()}


@contextlib.contextmanager
def _one_of(ranks: int) -> Iterator[None]:
    """As if this process were the first of so many, and all said yes."""

    def gather(answers, answer, group=None):
        answers.extend([answer] + [True] * (ranks - 1))

    with (
        mock.patch.object(dist, 'get_rank', return_value=0),
        mock.patch.object(dist, 'all_gather_object', gather),
    ):
        yield


def _stock(path, directory, state_dict, use_dist):
    manager = MetadataManager()
    manager.set_metadata_list([paddle.load(path)])
    return check_resumable_locally(
        directory, state_dict, manager, use_dist, None
    )


def _description(path):
    """What a partial read is to give; None where the whole is no metadata."""
    metadata = paddle.load(path)
    if not isinstance(metadata, Metadata):
        return None
    return metadata.state_dict_metadata


class _HeadUnpickler(pickle._Unpickler):
    """Notes what may be the description: each value that is followed so."""

    dispatch = dict(pickle._Unpickler.dispatch)
    find_class = restricted.RestrictedUnpickler.find_class

    def __init__(self, file):
        super().__init__(file)
        self.descriptions = []

    def note_field(self, load):
        load(self)
        *before, last = self.stack
        if last in _NEXT_FIELDS and before[-2:-1] == ['state_dict_metadata']:
            self.descriptions.append(steady(case.fingerprint(before[-1])))


def _noting(load):
    return lambda unpickler: unpickler.note_field(load)


for _code in pickle.SHORT_BINUNICODE[0], pickle.BINUNICODE[0]:
    _HeadUnpickler.dispatch[_code] = _noting(_HeadUnpickler.dispatch[_code])


def _head_descriptions(data):
    """What a file says up to where a reader of a part may end."""
    # Without frames, of which this unpickler takes fewer than the C one.
    pieces = streams.reframed(streams.parse_most(data), None)
    unpickler = _HeadUnpickler(io.BytesIO(b''.join(pieces)))
    with contextlib.suppress(Exception):
        unpickler.load()
    return unpickler.descriptions


def _check_partial(check, path):
    """A part of the file says what the file says, or nothing.

    A file can change later on what it has said at first. Then a part says
    what was said at first.
    """
    expected = check.oracle(_description, path)
    read = metadata_reader.load_state_dict_metadata
    found = check.ours(read, path, allow_full_load=False)
    whole = check.ours(read, path)
    # Of a file that is damaged behind the part, nothing more is known. And a
    # class in the place of a value has a stand-in in the reader.
    has_whole = (
        expected[0] == 'value'
        and expected[1][1] != 'None'
        and "('type', " not in steady(expected)
    )
    for what, end in ('partial', found), ('metadata', whole):
        if end[0] == 'value' and end[1][1] != 'None':
            if has_whole and steady(end[1]) not in _head_descriptions(
                check.data
            ):
                check.require_same(what, expected, end)
        elif end[0] == 'raises':
            check.require(
                issubclass(end[1], (OSError, ValueError)),
                f'{what}: raises {shown(end[1:])}',
            )
    return found[0] == 'value' and found[1][1] != 'None'


def _is_read_whole(path):
    """Whether the fast check reads all of the file."""
    head = metadata_reader._read_metadata_head(path)
    return head is not None and head.storage_metadata is not None


def _answer(outcome):
    """True or False; None for a refusal; an error is no permission either."""
    if outcome[0] == 'raises':
        return 'error'
    return {'True': True, 'False': False, 'None': None}[outcome[1][1]]


def check_metadata(check: Check) -> Result:
    """Partial reads, and the checks whether a local restore is right."""
    path = check.write('0.metadata')
    with open(os.path.join(check.directory, '0_0.distcp'), 'wb') as f:
        f.write(_data_file())
    twist = check.choose('', '', 'shape', 'key', 'fewer', 'all')
    use_dist = check.choose(False, True)
    state_dict = _state_dict(twist)
    has_part = _check_partial(check, path)
    with _one_of(2 if use_dist else 1):
        stock = _answer(
            check.oracle(_stock, path, check.directory, state_dict, use_dist)
        )
        arguments = path, check.directory, state_dict, use_dist
        outcome = check.ours(check_resumable_locally_fast, *arguments)
        fast = _answer(outcome)
        storage = _answer(
            check.ours(check_resumable_locally_by_storage, *arguments)
        )
        with mock.patch.object(memo_upkeep, '_MIN_UNSEEN', 1):
            kept_up = _answer(
                check.ours(check_resumable_locally_by_storage, *arguments)
            )
    if fast == 'error' or (fast and _is_read_whole(path)):
        check.require(
            fast is True and stock is True,
            f'fast check {twist!r}: expected {stock}, but received {fast} '
            f'{shown(outcome)}',
        )
    for answer in storage, kept_up:
        check.require(
            answer in (None, stock) or (answer is False and stock == 'error'),
            f'check by storage {twist!r}: expected {stock}, '
            f'but received {answer}',
        )
    refused = fast is None and storage is None and not has_part
    answered = 'error' if stock == 'error' else 'value'
    return Result('refused' if refused else answered, has_part, check.findings)
