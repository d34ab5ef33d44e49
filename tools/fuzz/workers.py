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

"""Processes that check files, and may crash or hang over them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import time
import traceback
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, NamedTuple

from .cases import Case, make_case, run_case
from .compare import Result, scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# A memo index or a length of a damaged file asks for any amount; so much more
# than it has at the start a process may have.
MEMORY_BYTES = 1 << 30

# No file takes more than a second; the machine may be busy.
MAX_CASE_S = 60.0

# Modules that a process has imported when it starts.
_PRELOADED = ['paddle', 'fuzz.cases']

# A process is replaced after so many cases: what damaged files leave in it
# (caches, numpy's dtypes) must not spoil all that follow.
_MAX_CASES = 500


class Job(NamedTuple):
    """What a process is to check: a case, or the number of one to make.

    Attributes:
        number(int): Its number, for the answer.
        target(str): The kind of file.
        run_seed(int): Makes the case, unless it is given.
        case(Case|None): The case.
        only_oracle(bool): Whether the oracle stands in for ours.
    """

    number: int
    target: str
    run_seed: int = 0
    case: Case | None = None
    only_oracle: bool = False

    def make(self) -> Case:
        """The case."""
        return self.case or make_case(self.target, self.run_seed, self.number)


def limit_memory() -> None:
    """Lets this process have `MEMORY_BYTES` more than it has now."""
    with open('/proc/self/statm') as f:
        used_bytes = int(f.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + MEMORY_BYTES, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _serve(connection, directory):
    # What crashes writes there, and numpy warns of damage.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT:
        signal.signal(number, signal.SIG_DFL)
    limit_memory()
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            job = connection.recv()
            connection.send(_result(job, directory, connection.send))


def _result(job, directory, announce):
    """The result of a job; a fault of the fuzzer itself is a finding too."""
    try:
        return run_case(job.make(), directory, announce, job.only_oracle)
    except Exception:
        trace = traceback.format_exc(limit=-3)
        return Result('crash', False, [f'fuzzer: {trace}'])


class _Process:
    """One process and the job that it has."""

    def __init__(self, directory):
        context = multiprocessing.get_context('forkserver')
        context.set_forkserver_preload(_PRELOADED)
        self.connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, directory), daemon=True
        )
        self._process.start()
        theirs.close()
        self.cases, self.job = 0, None
        self.stage = ''

    def give(self, job):
        self.job, self.stage = job, 'start'
        self.cases += 1
        self.deadline_s = time.monotonic() + MAX_CASE_S
        self.connection.send(job)

    def end(self):
        self.connection.close()
        self._process.kill()
        self._process.join()
        return self._process.exitcode

    def poll(self):
        """The result of the job; None if it goes on."""
        try:
            while self.connection.poll():
                message = self.connection.recv()
                if isinstance(message, Result):
                    return message
                self.stage = message
        except (EOFError, ConnectionResetError):
            self._process.join()
            return self._lost(f'exit code {self.end()}')
        if time.monotonic() > self.deadline_s:
            self.end()
            return self._lost(f'no answer within {MAX_CASE_S:.0f} s')
        return None

    def _lost(self, how):
        """Without an oracle there is nothing to differ from."""
        if self.stage == 'oracle':
            return Result('crash', False, [])
        return Result('crash', False, [f'crash: {how}, while {self.stage}'])


def run_jobs(
    jobs: Iterable[Job],
    processes: int,
    on_result: Callable[[Job, Result], None],
) -> None:
    """Runs jobs, however many processes they cost.

    Args:
        jobs(Iterable[Job]): What is to be checked; taken as it is needed.
        processes(int): How many processes there are at once.
        on_result(Callable[[Job, Result], None]): Is given each result; in
            the order in which they are done.
    """
    pending = iter(jobs)
    with contextlib.ExitStack() as stack:
        directories = [stack.enter_context(scratch()) for _ in range(processes)]
        slots = dict.fromkeys(directories)
        stack.callback(_end_all, slots)
        for directory in directories:
            _next_job(slots, directory, pending)
        while any(slots.values()):
            wait([p.connection for p in slots.values() if p], timeout=1.0)
            for directory, process in slots.items():
                result = process and process.poll()
                if result is not None:
                    on_result(process.job, result)
                    if process.connection.closed:
                        slots[directory] = None
                    _next_job(slots, directory, pending)


def _next_job(slots: dict, directory: str, pending: Iterator[Job]) -> None:
    job = next(pending, None)
    process = slots[directory]
    if process and (job is None or process.cases == _MAX_CASES):
        process.end()
        slots[directory] = process = None
    if job is not None:
        if process is None:
            process = slots[directory] = _Process(directory)
        process.give(job)


def _end_all(slots: dict) -> None:
    for process in slots.values():
        if process:
            process.end()


def run_one(job: Job) -> Result:
    """Runs a job in a process of its own."""
    results = []
    run_jobs([job], 1, lambda _, result: results.append(result))
    return results[0]
