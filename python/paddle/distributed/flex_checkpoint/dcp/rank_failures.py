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
"""What one rank fails with, made an error of all ranks.

`failure_told` is for what a rank does before it takes part in a gather that
the others may be in already; `outcome_shared` for what all of them do after
one, and it gathers itself. In both, the rank that fails raises its own error,
and every other rank a `RankFailedError` that says whose it was, and what.

Ctrl-C and what handlers of signals raise are not told: who interrupts a rank
wants it to end at once, not to wait for others.

Not here: what is done with the checkpoint (``load_state_dict``).
"""

from __future__ import annotations

import contextlib
import traceback

import paddle
from paddle.framework.io_utils import _raise_signalled

# An error may show a whole value; every rank gets the text from every other.
_MAX_CAUSE_CHARACTERS = 2000
# Where a file system is gone, most ranks say the same.
_MAX_RANKS_TOLD = 4


class RankFailedError(RuntimeError):
    """Another rank could not load its part of a checkpoint."""


class _Failure:
    """To be gathered in the place of an answer: unpickling it is an error.

    So it ends every check that the others may be in, ours and the stock one,
    in the collective that they are in anyway.
    """

    def __init__(self, message):
        self._message = message

    def __reduce__(self):
        return _raise_failed, (self._message,)


def _raise_failed(message):
    raise RankFailedError(message)


@contextlib.contextmanager
def failure_told(path, process_group, is_shared):
    """Tell an error to the ranks that wait in a gather, then raise it.

    Nothing in the context may communicate: a rank whose gather failed, or
    that has been through it, would take part in another.

    Args:
        path (str): The directory of the checkpoint.
        process_group (Group|None): The ranks that load; None for all.
        is_shared (bool): Whether there are others, and they are to be told.
    """
    try:
        yield
    except Exception as error:
        if is_shared:
            _raise_signalled(error)
            message = f'nothing was restored: {_description(path, error)}'
            _gather_despite_error(_Failure(message), process_group)
        raise


@contextlib.contextmanager
def outcome_shared(
    path, process_group, is_shared, done='this rank restored its tensors'
):
    """Have all ranks meet in a gather at the end, and fail if one failed.

    Args:
        path (str): The directory of the checkpoint.
        process_group (Group|None): The ranks that load; None for all.
        is_shared (bool): Whether there are others, and they are to be met.
        done (str): What a rank has done, or could do, that did not fail.

    Raises:
        RankFailedError: Others failed.
    """
    try:
        yield
    except Exception as error:
        if is_shared:
            _raise_signalled(error)
            _gather_despite_error(_description(path, error), process_group)
        raise
    if not is_shared:
        return
    failures = []
    paddle.distributed.all_gather_object(failures, None, process_group)
    failures = [failure for failure in failures if failure is not None]
    if failures:
        told = '; '.join(failures[:_MAX_RANKS_TOLD])
        others = len(failures) - _MAX_RANKS_TOLD
        more = f'; and {others} more' if others > 0 else ''
        raise RankFailedError(f'{done}, but {told}{more}')


def _description(path, error):
    lines = traceback.format_exception_only(type(error), error)
    cause = ''.join(lines).strip()[:_MAX_CAUSE_CHARACTERS]
    rank = paddle.distributed.get_rank()
    return f"rank {rank} failed to load '{path}': {cause}"


def _gather_despite_error(value, process_group):
    """Take part in a gather; what fails in it is less than the error at hand."""
    try:
        paddle.distributed.all_gather_object([], value, process_group)
    except Exception as error:
        _raise_signalled(error)
