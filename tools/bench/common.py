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

"""What the benchmarks share: processes, memory, files, rounds.

Absolute times say little on a machine that others use, so that all is told by
ratios within one run: the ways to do a thing take turns, round by round, and
the medians of the rounds are compared. What is measured runs in children of a
process that has imported Paddle and done nothing else; a child that serves one
call is as fresh as a new interpreter, without paying for the import each time.

Not here: what is measured (`load_jobs`, `resume_jobs`), options and output
(`report`).
"""

from __future__ import annotations

import contextlib
import importlib
import mmap
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]

MEMORY_DIRECTORY = Path('/dev/shm')

# Large enough that the calls to numpy vanish beside the comparison, small
# enough that the result of comparing stays in a second-level cache.
COMPARED_BYTES = 1024 * 1024

# What the children have imported when they start; a benchmark adds its own
# before the first of them.
PRELOADED_MODULES = ['paddle', 'bench.load_jobs', 'bench.resume_jobs']

STARTED_S = time.monotonic()


class BenchError(Exception):
    """The benchmark cannot go on; the message is for its user."""


class VerificationError(BenchError):
    """What was loaded is not what was saved."""


class Sample(NamedTuple):
    """One measured call.

    Args:
        seconds(float): how long it took.
        verified_bytes(int): how many bytes of its result were compared
            afterwards.
        peak_bytes(int|None): how far the process's peak memory rose; None
            where that tells nothing.
        notes(dict|None): what else is to be shown of it.
    """

    seconds: float
    verified_bytes: int
    peak_bytes: int | None = None
    notes: dict[str, Any] | None = None


# ---- processes


def use_paddle(directory: Path) -> None:
    """Imports Paddle from a directory, here and in the children.

    Args:
        directory(Path): holds the package `paddle`, e.g. the fork tree.

    Raises:
        BenchError: it does not.
    """
    if not (directory / 'paddle' / '__init__.py').is_file():
        raise BenchError(
            f'{directory}: expected the package paddle, but found none. '
            'Run `python3 tools/paddle_fork.py build` first.'
        )
    paths = [str(directory), str(ROOT / 'tools')]
    sys.path[:0] = paths
    inherited = os.environ.get('PYTHONPATH')
    if inherited:
        paths.append(inherited)
    os.environ['PYTHONPATH'] = os.pathsep.join(paths)
    # Paddle warns on import of tools that only its extensions need.
    warnings.simplefilter('ignore', UserWarning)
    os.environ.setdefault('PYTHONWARNINGS', 'ignore::UserWarning')
    importlib.import_module('paddle')


class Worker:
    """A child process that has imported Paddle, for one call or for many."""

    def __init__(self) -> None:
        context = multiprocessing.get_context('forkserver')
        context.set_forkserver_preload(PRELOADED_MODULES)
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs,), daemon=True
        )
        self._process.start()
        theirs.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._connection.close()
        if exc_info[0] is not None:
            self._process.terminate()
        self._process.join()

    def __call__(
        self, function: Callable[..., Any], *args: Any, **options: Any
    ) -> Any:
        """Calls a function of a module there, returns what it returns.

        Raises:
            BenchError: as the function raised it, or with the traceback of
                any other exception, or because the process has died.
        """
        self._connection.send((function, args, options))
        try:
            error, value = self._connection.recv()
        except EOFError:
            self._process.join()
            raise BenchError(
                f'{function.__name__}: the process ended with exit code '
                f'{self._process.exitcode}; was there enough memory?'
            ) from None
        if error is not None:
            raise error
        return value


def call_fresh(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Calls a function of a module in a process of its own."""
    with Worker() as worker:
        return worker(function, *args, **options)


def _serve(connection: Any) -> None:
    os.dup2(2, 1)  # standard output is for the tables alone
    # Paddle's own handler prints a traceback of what was only sent away.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        while True:
            function, args, options = connection.recv()
            try:
                answer = None, function(*args, **options)
            except BenchError as error:
                answer = error, None
            except Exception:
                answer = BenchError(traceback.format_exc()), None
            connection.send(answer)


# ---- memory


def reset_peak_memory() -> int:
    """Lets the peak start from what is in use, where the kernel can.

    Returns:
        int: the peak from now on, in bytes.
    """
    with contextlib.suppress(OSError):
        Path('/proc/self/clear_refs').write_text('5')
    return peak_memory()


def peak_memory() -> int:
    """The most memory this process has had so far, in bytes."""
    for line in Path('/proc/self/status').read_text().splitlines():
        if line.startswith('VmHWM:'):
            return int(line.split()[1]) * 1024
    raise BenchError('/proc/self/status: expected VmHWM, but found none')


def available_memory() -> int | None:
    """How many bytes new processes can have; None where nothing tells."""
    with contextlib.suppress(OSError):
        for line in Path('/proc/meminfo').read_text().splitlines():
            if line.startswith('MemAvailable:'):
                return int(line.split()[1]) * 1024
    return None


def settle_memory(size_bytes: int) -> None:
    """Lets the next load have memory that the machine really has.

    A virtual machine gets memory from its host when it is first touched, at
    the cost of a second or more per GiB. Which load meets such memory is
    chance; huge pages, which are seldom free for long, meet it more often.
    So as much as a load takes is touched and given back just before. What
    cannot be spared is left out.
    """
    available_bytes = available_memory()
    if available_bytes is not None:
        size_bytes = min(size_bytes, available_bytes // 2)
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE) as memory:
        if hasattr(mmap, 'MADV_HUGEPAGE'):
            with contextlib.suppress(OSError):
                memory.madvise(mmap.MADV_HUGEPAGE)
        np.frombuffer(memory, np.uint8).fill(1)


def same_bytes(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two arrays have the same bytes, in C order."""
    if first.nbytes != second.nbytes:
        return False
    # Words are compared in half the time of bytes.
    unit = np.uint8 if first.nbytes % 8 else np.uint64
    first = np.ascontiguousarray(first).reshape(-1).view(unit)
    second = np.ascontiguousarray(second).reshape(-1).view(unit)
    step = COMPARED_BYTES // np.dtype(unit).itemsize
    return all(
        np.array_equal(
            first[start : start + step], second[start : start + step]
        )
        for start in range(0, first.size, step)
    )


class WarmCopy:
    """Copies a file from the page cache into memory that was used before.

    The limit of every load that owns its memory. The first copy, which is not
    measured, is the one that is compared.
    """

    def __init__(self, path: Path) -> None:
        self._source = np.memmap(path, np.uint8, 'r')
        self._target = np.empty_like(self._source, subok=False)
        np.copyto(self._target, self._source)
        if not same_bytes(self._target, self._source):
            raise VerificationError(f'{path}: the copy differs')

    def __call__(self) -> Sample:
        begin = time.perf_counter()
        np.copyto(self._target, self._source)
        seconds = time.perf_counter() - begin
        return Sample(seconds, self._target.nbytes)


# ---- files


@contextlib.contextmanager
def scratch_directory(needs_bytes: int, parent: Path | None) -> Iterator[Path]:
    """A directory that is removed however the block ends.

    Args:
        needs_bytes(int): what will be in it at once.
        parent(Path|None): where. None: in memory, or with a warning in the
            directory for temporary files if memory has no room.

    Raises:
        BenchError: there is no room.
    """
    if parent is None:
        parent = MEMORY_DIRECTORY
        if (
            not os.access(parent, os.W_OK)
            or shutil.disk_usage(parent).free < needs_bytes
        ):
            parent = Path(tempfile.gettempdir())
            progress(
                f'WARNING: {MEMORY_DIRECTORY} has no room for '
                f'{format_bytes(needs_bytes)}; the files go to {parent}, and '
                'the figures may be those of a disk'
            )
    if not parent.is_dir():
        raise BenchError(f'{parent}: expected a directory, but found none')
    free_bytes = shutil.disk_usage(parent).free
    if free_bytes < needs_bytes:
        raise BenchError(
            f'{parent}: expected room for {format_bytes(needs_bytes)}, but '
            f'found {format_bytes(free_bytes)}. Give less with --total, or '
            'another place with --directory.'
        )
    folder = Path(tempfile.mkdtemp(prefix='paddle_bench_', dir=parent))
    try:
        yield folder
    finally:
        # A second Ctrl-C would leave the rest of the files behind.
        with _interrupts_ignored():
            shutil.rmtree(folder)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not in the main thread, which alone is interrupted
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# ---- rounds


def run_rounds(
    calls: dict[str, Callable[[], Sample]],
    rounds: int,
    what: str,
    warmups: int = 0,
    settled_bytes: int = 0,
) -> dict[str, list[Sample]]:
    """Lets the ways to do a thing take turns.

    Args:
        calls(dict): does it once, by name of the way.
        rounds(int): how often each is measured.
        what(str): the thing, for the progress lines.
        warmups(int, optional): rounds before those that count. Default: 0.
        settled_bytes(int, optional): what to give to `settle_memory` before
            each call. Default: 0, it is not called.

    Returns:
        dict[str, list[Sample]]: one sample per round, by name of the way.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in calls}
    for number in range(-warmups, rounds):
        label = 'warm-up' if number < 0 else f'round {number + 1} of {rounds}'
        progress(f'{what}: {label}')
        for name, call in calls.items():
            if settled_bytes:
                settle_memory(settled_bytes)
            sample = call()
            if number >= 0:
                samples[name].append(sample)
    return samples


def summarise(
    samples: dict[str, list[Sample]],
    baseline: str,
    limit: str | None = None,
    payload_bytes: int | None = None,
    **columns: Any,
) -> list[dict[str, Any]]:
    """One row per way, from the medians of its samples.

    Args:
        samples(dict): of `run_rounds`.
        baseline(str): the way that `speedup` is told against.
        limit(str|None, optional): the way that `of_limit` is told against.
            Default: None, there is none.
        payload_bytes(int|None, optional): what each way loads. Default: None,
            no throughput is told.
        columns(Any): what all rows have in common.

    Returns:
        list[dict[str, Any]]: `seconds`, the least and the most of them,
        `speedup` (baseline / way), `of_limit` (way / limit), `gb_per_s`,
        `peak_bytes`, `peak_ratio` (of the payload), None where it does not
        apply; `verified_loads`; the columns and notes.

    Raises:
        VerificationError: a sample was not compared in full.
    """
    medians = {
        name: median(sample.seconds for sample in group)
        for name, group in samples.items()
    }
    rows = []
    for name, group in samples.items():
        for sample in group:
            if sample.verified_bytes < (payload_bytes or 1):
                raise VerificationError(
                    f'{columns}, {name}: expected {payload_bytes or 1} bytes '
                    f'to be compared, but only {sample.verified_bytes} were'
                )
        seconds = medians[name]
        peaks = [
            sample.peak_bytes
            for sample in group
            if sample.peak_bytes is not None
        ]
        peak_bytes = median(peaks) if peaks else None
        rows.append(
            {
                **columns,
                'way': name,
                'seconds': seconds,
                'seconds_min': min(sample.seconds for sample in group),
                'seconds_max': max(sample.seconds for sample in group),
                'speedup': medians[baseline] / seconds,
                'of_limit': limit and seconds / medians[limit],
                'gb_per_s': payload_bytes and payload_bytes / 1e9 / seconds,
                'peak_bytes': peak_bytes,
                'peak_ratio': (
                    peak_bytes / payload_bytes
                    if peak_bytes is not None and payload_bytes
                    else None
                ),
                'verified_loads': len(group),
                **(group[-1].notes or {}),
            }
        )
    return rows


# ---- words


def progress(text: str) -> None:
    """Tells what is going on and since when, aside from the results."""
    elapsed_s = time.monotonic() - STARTED_S
    print(f'[{elapsed_s:4.0f} s] {text}', file=sys.stderr, flush=True)


def format_bytes(count: float) -> str:
    """A size with the largest unit that leaves at least 1 before the dot."""
    unit = 'B'
    for name in ('KiB', 'MiB', 'GiB'):
        if count < 1024:
            break
        count, unit = count / 1024, name
    return f'{count:.3g} {unit}' if count < 1000 else f'{count:.0f} {unit}'
