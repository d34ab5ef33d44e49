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

"""What each rank does when some of them meet a fault; run by every rank.

All faults go through one process group. A rank that fails shows that to the
others in the collective in which they would wait for it, where each of them
notes so instead of waiting.
"""

import contextlib
import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import paddle
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp import (
    fast_resumable,
    storage_reader,
)
from paddle.distributed.flex_checkpoint.dcp import load_state_dict as loader
from paddle.framework import io_utils

# The first two have a payload of their own in the file.
SHAPES = {'one': (150, 120), 'two': (300, 100), 'small': (2, 3)}

ENDED = 'this rank has ended'


class Waits(BaseException):
    """Others have ended, so this rank would wait in a collective."""


class Collectives:
    """Stands in for the collectives; notes which are called."""

    def __init__(self):
        self._gather = dist.all_gather_object
        self.names = []
        # Is called on the way into, and out of, the gathering of answers.
        self.before_answers = self.after_answers = lambda: None

    def all_gather_object(self, gathered, value, group=None):
        self.before_answers()
        self.names.append('gather')
        gathered += self._exchange(value, group)
        self.after_answers()

    def barrier(self, group=None):
        self.names.append('barrier')
        self._exchange(None, group)

    def end(self, group):
        self._gather([], ENDED, group)

    def _exchange(self, value, group):
        gathered = []
        self._gather(gathered, value, group)
        if ENDED in gathered:
            raise Waits
        return gathered


# ---- faults: contexts in which a rank loads


def fails(*args):
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def has_no_memory(*args):
    raise MemoryError('none left')


def is_interrupted(*args, **options):
    raise KeyboardInterrupt


@contextlib.contextmanager
def reads_fail(function_name, suffix):
    """System calls fail for files of a kind."""
    function = getattr(os, function_name)

    def read(fd, *args):
        if os.readlink(f'/proc/self/fd/{fd}').endswith(suffix):
            fails()
        return function(fd, *args)

    with mock.patch.object(os, function_name, read):
        yield


@contextlib.contextmanager
def loads_fail(suffix):
    load = paddle.load

    def load_or_fail(path, **options):
        return fails() if path.endswith(suffix) else load(path, **options)

    with mock.patch.object(paddle, 'load', load_or_fail):
        yield


@contextlib.contextmanager
def metadata_fails():
    """No reader can read it."""
    with (
        reads_fail('pread', '.metadata'),
        mock.patch.object(storage_reader, '_open_regular', fails),
        loads_fail('.metadata'),
    ):
        yield


@contextlib.contextmanager
def declines():
    """Leaves the decision to the stock check."""
    with mock.patch.multiple(
        loader,
        check_resumable_locally_fast=lambda *args: None,
        check_resumable_locally_by_storage=lambda *args: None,
    ):
        yield


@contextlib.contextmanager
def cannot_and_metadata_fails():
    """The rank's own file is no use, nor the metadata for a reshard."""
    with reads_fail('pread', '.distcp'), loads_fail('.metadata'):
        yield


def truncate(path):
    os.truncate(path, os.path.getsize(path) - 9)


class Load(NamedTuple):
    """One load of a faulty rank: its files, its tensors, its collectives."""

    path: str
    file_path: str
    target: dict
    collectives: Collectives

    @property
    def metadata_path(self):
        return os.path.join(self.path, '0.metadata')

    def remove_folder(self):
        shutil.rmtree(self.path)

    def add_metadata(self):
        shutil.copy(self.metadata_path, os.path.join(self.path, '1.metadata'))

    def set_no_tensor(self):
        self.target['small'] = 7

    def truncate_later(self):
        self.collectives.after_answers = lambda: truncate(self.file_path)

    def answer_no_memory(self):
        self.collectives.before_answers = has_no_memory


class Fault(NamedTuple):
    """A fault and what comes of it.

    Attributes:
        outcome (str): 'local' or 'reshard' on all ranks; 'fails': all ranks
            fail and restore nothing; 'fails_late': they fail, but the others
            have restored what is theirs; 'waits': the rank fails, and the
            others would wait for it; 'alone': the rank fails, and the others
            have restored what is theirs.
        prepare (callable): Makes the fault; gets the Load.
        context (callable): A context in which the rank then loads.
        error (str): What the rank's error or log says.
        names_path (bool): Whether they name the checkpoint too.
        num_workers (int): An argument of the load.
        fast (bool): Another.
        others (callable): A context in which the other ranks load.
    """

    outcome: str
    prepare: Callable = lambda load: None
    context: Callable = contextlib.nullcontext
    error: str = ''
    names_path: bool = True
    num_workers: int = 1
    fast: bool = True
    others: Callable = contextlib.nullcontext


def patched(*args):
    return lambda: mock.patch.object(*args)


def replaced(function, *args):
    return lambda: function(*args)


EIO = os.strerror(errno.EIO)
# As `paddle.load` says it, and the scan.
TRUNCATED = 'can not parse the file|expected a complete pickle'
FAULTS = {
    'none': Fault('local'),
    # The metadata is read.
    'head_fails': Fault(
        'local', context=replaced(reads_fail, 'pread', '.metadata'), error=EIO
    ),
    'head_no_memory': Fault(
        'local',
        context=patched(fast_resumable, '_read_metadata_head', has_no_memory),
        error='none left',
    ),
    'metadata_fails': Fault('fails', context=metadata_fails, error=EIO),
    'metadata_missing': Fault(
        'fails',
        lambda load: os.remove(load.metadata_path),
        error='AssertionError: No metadata file',
    ),
    'metadata_twice': Fault(
        'fails',
        Load.add_metadata,
        error='AssertionError: Only support one',
        names_path=False,
    ),
    'metadata_truncated': Fault(
        'fails', lambda load: truncate(load.metadata_path), error=TRUNCATED
    ),
    'metadata_fails_later': Fault(
        'fails', context=cannot_and_metadata_fails, error=f'OSError.*{EIO}'
    ),
    'folder_missing': Fault(
        'fails', Load.remove_folder, error='FileNotFoundError'
    ),
    'folder_missing_others_stock': Fault(
        'fails',
        Load.remove_folder,
        error='FileNotFoundError',
        others=declines,
    ),
    'metadata_truncated_stock': Fault(
        'waits',
        lambda load: truncate(load.metadata_path),
        error=TRUNCATED,
        fast=False,
    ),
    # The own file is scanned.
    'scan_fails': Fault(
        'reshard', context=replaced(reads_fail, 'pread', '.distcp'), error=EIO
    ),
    'scan_no_memory': Fault(
        'reshard',
        context=patched(fast_resumable, '_scan', has_no_memory),
        error='none left',
    ),
    'file_truncated': Fault(
        'reshard', lambda load: truncate(load.file_path), error=TRUNCATED
    ),
    'file_missing': Fault(
        'reshard', lambda load: os.remove(load.file_path), error='missing'
    ),
    'file_missing_stock': Fault(
        'reshard',
        lambda load: os.remove(load.file_path),
        names_path=False,
        fast=False,
    ),
    'scan_interrupted': Fault(
        'waits',
        context=patched(fast_resumable, '_scan', is_interrupted),
        error='KeyboardInterrupt',
        names_path=False,
    ),
    # Before the collective.
    'no_tensor': Fault('fails', Load.set_no_tensor, error='ValueError.*got: 7'),
    'no_tensor_others_stock': Fault(
        'fails',
        Load.set_no_tensor,
        error='ValueError.*got: 7',
        others=declines,
    ),
    'no_tensor_stock': Fault(
        'waits',
        Load.set_no_tensor,
        error='got: 7',
        names_path=False,
        fast=False,
    ),
    'answer_no_memory': Fault(
        'waits', Load.answer_no_memory, error='none left', names_path=False
    ),
    # After it.
    'load_fails': Fault(
        'fails_late',
        context=replaced(loads_fail, '.distcp'),
        error=f'OSError.*{EIO}',
    ),
    'load_fails_others_stock': Fault(
        'fails_late',
        context=replaced(loads_fail, '.distcp'),
        error=f'OSError.*{EIO}',
        others=declines,
    ),
    'load_interrupted': Fault(
        'waits',
        context=patched(loader, 'local_load_state_dict', is_interrupted),
        error='KeyboardInterrupt',
        names_path=False,
    ),
    'file_truncated_later': Fault(
        'fails_late', Load.truncate_later, error=TRUNCATED
    ),
    'file_truncated_stock': Fault(
        'alone',
        lambda load: truncate(load.file_path),
        error=TRUNCATED,
        fast=False,
    ),
    # In the restore in place.
    'restore_fails': Fault(
        'local',
        context=replaced(reads_fail, 'preadv', '.distcp'),
        error=EIO,
        num_workers=4,
    ),
    'restore_no_threads': Fault(
        'local',
        context=patched(
            io_utils._thread,
            'start_new_thread',
            mock.Mock(side_effect=RuntimeError("can't start new thread")),
        ),
        num_workers=4,
    ),
    'restore_truncated_later': Fault(
        'fails_late', Load.truncate_later, error=TRUNCATED, num_workers=4
    ),
}


class Case(NamedTuple):
    """A fault, the ranks that meet it, and all that load."""

    name: str
    faulty_ranks: tuple
    members: tuple

    @property
    def label(self):
        ranks = '_'.join(map(str, self.faulty_ranks))
        group = '' if 0 in self.members else '_in_group'
        return f'{self.name}_{ranks}{group}'


def cases(num_ranks):
    everyone, last = tuple(range(num_ranks)), num_ranks - 1
    for name in FAULTS:
        yield Case(name, (0,), everyone)
        yield Case(name, (last,), everyone)
    for name in ('folder_missing', 'scan_fails', 'load_fails'):
        yield Case(name, (0, last), everyone)
        if num_ranks > 2:
            yield Case(name, (last,), (1, last))


# ---- the rank


class Rank:
    def __init__(self, folder):
        dist.init_parallel_env()
        self.folder = folder
        self.rank, self.num_ranks = dist.get_rank(), dist.get_world_size()
        self.saved = os.path.join(folder, 'saved')

    def tensors(self, value):
        return {k: paddle.full(shape, value) for k, shape in SHAPES.items()}

    def run_all(self):
        dist.save_state_dict(
            self.tensors(self.rank + 1.0), self.saved, save_replicas=True
        )
        dist.barrier()
        group = None
        if self.num_ranks > 2:
            group = dist.new_group([1, self.num_ranks - 1])
        results = {}
        for case in cases(self.num_ranks):
            if self.rank in case.members:
                is_whole = len(case.members) == self.num_ranks
                results[case.label] = self.run(
                    case, None if is_whole else group
                )
        with open(os.path.join(self.folder, f'{self.rank}.json'), 'w') as f:
            json.dump(results, f)

    def run(self, case, group):
        """One load; -> what this rank sees of it."""
        fault = FAULTS[case.name]
        is_faulty = self.rank in case.faulty_ranks
        path = self.saved
        if is_faulty:
            path = os.path.join(self.folder, f'{case.label}_of_{self.rank}')
            shutil.copytree(self.saved, path)
        own_file = os.path.join(path, f'{self.rank}_0.distcp')
        load = Load(path, own_file, self.tensors(0.0), Collectives())
        if is_faulty:
            fault.prepare(load)
        with (
            mock.patch.multiple(
                dist,
                all_gather_object=load.collectives.all_gather_object,
                barrier=load.collectives.barrier,
            ),
            # A reshard needs a GPU and is only seen to be chosen.
            mock.patch.object(loader, 'load_state_dict_impl') as reshard,
            self.log() as messages,
            fault.context() if is_faulty else fault.others(),
        ):
            error = self.load(load, fault, group)
        if error != 'waits':
            load.collectives.end(group)
        values = {
            value
            for tensor in load.target.values()
            if isinstance(tensor, paddle.Tensor)
            for value in tensor.unique().tolist()
        }
        return {
            'error': error,
            'chosen': 'reshard' if reshard.called else 'local',
            'collectives': load.collectives.names,
            'values': sorted(values),
            'log': messages,
        }

    def load(self, load, fault, group):
        try:
            dist.load_state_dict(
                load.target,
                load.path,
                group,
                num_workers=fault.num_workers,
                fast_resumable_check=fault.fast,
            )
        except Waits:
            return 'waits'
        except (Exception, KeyboardInterrupt) as error:
            return f'{type(error).__name__}: {error}'
        return None

    @contextlib.contextmanager
    def log(self):
        """Collects what is logged."""
        messages = []
        with contextlib.ExitStack() as stack:
            for logger in (fast_resumable.logger, io_utils._logger):
                for level in ('info', 'warning'):
                    stack.enter_context(
                        mock.patch.object(logger, level, messages.append)
                    )
            yield messages

    def die_in_load(self):
        """The last rank is gone before the others have its answer."""
        is_last = self.rank == self.num_ranks - 1

        def kill(*args):
            os.kill(os.getpid(), signal.SIGKILL)

        with mock.patch.object(
            fast_resumable, '_scan', kill if is_last else fast_resumable._scan
        ):
            dist.load_state_dict(self.tensors(0.0), self.saved)


if __name__ == '__main__':
    work = Rank(sys.argv[1])
    work.run_all()
    if sys.argv[2] == 'died':
        work.die_in_load()
