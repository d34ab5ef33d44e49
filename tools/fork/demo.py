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

"""Shows the parallel load on a real checkpoint, in fresh processes.

Without a file of the user's, `demo_resume` then shows a distributed restore.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from .console import EXIT_FAILED, EXIT_OK, EXIT_USAGE, ForkError, counted, step
from .demo_resume import run_resume

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .project import Project

# Wide ResNet-50-2 with its Adam state takes 0.83 GB; on tmpfs the file lives in
# memory beside the process that loads it, so ask for room for both.
EXAMPLE_NEEDS_BYTES = 1_000_000_000
TMPFS_NEEDS_BYTES = 4 * EXAMPLE_NEEDS_BYTES


def run_demo(
    project: Project, checkpoint: Path | None, num_workers: int, runs: int
) -> int:
    """Loads a checkpoint both ways, verifies and prints a table.

    Args:
        project(Project): whose fork tree.
        checkpoint(Path, optional): the user's file. Default: None, an
            example that is made and removed.
        num_workers(int): of the parallel load.
        runs(int): loads per line of the table.

    Returns:
        int: EXIT_OK when all loads gave the same bytes.

    Raises:
        ForkError: no such file, no room, or a load that failed.
    """
    if checkpoint is not None and not checkpoint.is_file():
        raise ForkError(f'{checkpoint}: expected a file', EXIT_USAGE)
    worker = Worker(project, project.set_up())
    if checkpoint is not None:
        return compare(worker, checkpoint.resolve(), num_workers, runs)
    with example_directory() as folder:
        example = folder / 'wide_resnet50_2_adam.pdparams'
        step(f'saving Wide ResNet-50-2 with its Adam state in {folder}')
        told = worker('save', example)
        step(f'{told["tensors"]} tensors, {told["payload_bytes"]:,} bytes')
        code = compare(worker, example, num_workers, runs)
        example.unlink()
        python = worker.command[0]
        resumed = run_resume(project, python, folder, num_workers, runs)
        return max(code, resumed)


class Worker:
    """Runs the module `demo_worker` on the fork tree, one process a call."""

    def __init__(self, project: Project, python: Path) -> None:
        self.command = [python, '-m', 'fork.demo_worker']
        self.environ = project.environ(project.root / 'tools')

    def __call__(self, *args: object) -> dict[str, Any]:
        """Hands over the arguments; returns what the worker reports."""
        done = subprocess.run(
            [*self.command, *map(str, args)],
            env=self.environ,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            *_, last = done.stderr.strip().splitlines() or ['no reason told']
            raise ForkError(f'{" ".join(map(str, args))}: {last}')
        # Paddle may print lines of its own before ours.
        return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def example_directory() -> Iterator[Path]:
    """A temporary directory, in memory where there is room for it."""
    memory = Path('/dev/shm')
    if (
        memory.is_dir()
        and os.access(memory, os.W_OK)
        and shutil.disk_usage(memory).free >= TMPFS_NEEDS_BYTES
        and available_memory_bytes() >= TMPFS_NEEDS_BYTES
    ):
        parent = memory
    else:
        parent = Path(tempfile.gettempdir())
        free_bytes = shutil.disk_usage(parent).free
        if free_bytes < EXAMPLE_NEEDS_BYTES:
            raise ForkError(
                f'{parent}: expected {EXAMPLE_NEEDS_BYTES:,} bytes of room, '
                f'but found {free_bytes:,}. Set TMPDIR to another place.'
            )
    with tempfile.TemporaryDirectory(
        prefix='paddle_fork_demo_', dir=parent
    ) as folder:
        yield Path(folder)


def available_memory_bytes() -> int:
    """What Linux says new processes can have; 0 where it does not say."""
    try:
        text = Path('/proc/meminfo').read_text()
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith('MemAvailable:'):
            return int(line.split()[1]) * 1024
    return 0


def compare(worker: Worker, path: Path, num_workers: int, runs: int) -> int:
    """Measures all four ways to load, and prints what came out."""
    # Serial first: its content is what the parallel loads are held to.
    ways = [
        (result, workers)
        for result in ('numpy', 'tensor')
        for workers in (0, num_workers)
    ]
    measured: dict[tuple[str, int], list[dict[str, Any]]] = {
        way: [] for way in ways
    }
    total = runs * len(ways)
    file_bytes = path.stat().st_size
    # Round by round, so that a busy moment does not hit one way alone.
    for number in range(total):
        result, workers = way = ways[number % len(ways)]
        step(f'load {number + 1} of {total}: {result}, num_workers={workers}')
        # Twice what the load needs, for other processes take of it too.
        settled_bytes = min(2 * file_bytes, available_memory_bytes() // 2)
        measured[way].append(
            worker(
                *('load', path, '--result', result),
                *('--num-workers', workers, '--settled-bytes', settled_bytes),
            )
        )
    size = f'{file_bytes / 1e9:.2f} GB'
    print(f'\n{path.name}: {size}, {counted(runs, "run")} each\n')
    print(table(measured, file_bytes))
    load_average, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load_average > cores:
        print(
            f'The machine was busy (load average {load_average:.1f} on '
            f'{counted(cores, "core")}): run it again when it is not.'
        )
    return verdict(measured)


def table(
    measured: dict[tuple[str, int], list[dict[str, Any]]], file_bytes: int
) -> str:
    """One line per way to load, medians."""
    head = ('result', 'num_workers', 'seconds', 'GB/s', 'ratio', 'peak GB')
    rows = [head]
    for (result, workers), loads in measured.items():
        seconds = median(load['seconds'] for load in loads)
        serial = median(load['seconds'] for load in measured[result, 0])
        rows.append(
            (
                result,
                str(workers) if workers else 'serial',
                f'{seconds:.3f}',
                f'{file_bytes / 1e9 / seconds:.2f}',
                f'{serial / seconds:.2f}x',
                f'{median(load["peak_bytes"] for load in loads) / 1e9:.2f}',
            )
        )
    base = median(
        load['base_bytes'] for loads in measured.values() for load in loads
    )
    lines = [
        f'{row[0]:<8}' + ''.join(f'{cell:>13}' for cell in row[1:])
        for row in rows
    ]
    return '\n'.join(
        [
            *lines,
            '',
            f'Peak memory is of the whole process, of which Paddle itself '
            f'takes {base / 1e9:.2f} GB.',
        ]
    )


def verdict(measured: dict[tuple[str, int], list[dict[str, Any]]]) -> int:
    """Whether all loads of a kind of result gave the same content."""
    wrong = []
    for (result, workers), loads in measured.items():
        expected = measured[result, 0][0]['content']
        wrong += [
            f'{result}, num_workers={workers}: {key}'
            for load in loads
            for key in sorted({*expected, *load['content']})
            if expected.get(key) != load['content'].get(key)
        ]
    if wrong:
        shown = '\n  '.join(wrong[:10])
        print(f'DIFFERENT in {len(wrong)} places:\n  {shown}')
        return EXIT_FAILED
    first = measured['numpy', 0][0]
    line = (
        f'Verified in every run: names, types, shapes and SHA-256 of the '
        f'bytes of all {len(first["content"])} values equal the serial load.'
    )
    if first['opaque']:
        line += f' Not looked into: {first["opaque"]} objects of other types.'
    print(line)
    return EXIT_OK
