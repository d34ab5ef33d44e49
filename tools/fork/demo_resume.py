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

"""Shows a local restore of a distributed checkpoint, on two ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from .console import EXIT_FAILED, EXIT_OK, ForkError, counted, step

if TYPE_CHECKING:
    from .project import Project

RANKS = 2
# Saving and six restores take 10 s on two cores; what hangs is ended.
LIMIT_SECONDS = 300


def run_resume(
    project: Project, python: Path, folder: Path, num_workers: int, runs: int
) -> int:
    """Saves a checkpoint with two ranks, restores it both ways, and tells.

    Args:
        project(Project): whose fork tree.
        python(Path): the interpreter of `.venv`.
        folder(Path): where the checkpoint goes.
        num_workers(int): of the fast way; the stock way has one.
        runs(int): restores per line of the table.

    Returns:
        int: EXIT_OK when every restore gave the values that were saved.

    Raises:
        ForkError: a rank failed or hung.
    """
    step(
        f'saving a checkpoint with {RANKS} ranks, restoring it {2 * runs} times'
    )
    launch(project, python, folder, num_workers, runs)
    ranks = [
        json.loads((folder / f'{rank}.json').read_text())
        for rank in range(RANKS)
    ]
    print(
        f'\nA checkpoint with replicas, {RANKS} ranks (gloo), '
        f'{counted(runs, "run")} each\n'
    )
    print(table(ranks, num_workers))
    return verdict(ranks)


def launch(
    project: Project, python: Path, folder: Path, num_workers: int, runs: int
) -> None:
    """Runs the module `demo_resume_worker` on every rank, to its end."""
    worker = Path(__file__).with_name('demo_resume_worker.py')
    process = subprocess.Popen(
        [
            *(python, '-m', 'paddle.distributed.launch'),
            *('--nproc_per_node', str(RANKS), '--backend', 'gloo'),
            *('--log_dir', folder / 'log'),
            *(worker, folder, str(num_workers), str(runs)),
        ],
        env=project.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors='replace',
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT_SECONDS)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise ForkError(
                f'the ranks did not end within {LIMIT_SECONDS} s'
            ) from error
        raise
    if process.returncode != 0:
        raise ForkError(f'{output[-3000:]}\na rank failed (see above)')


def table(ranks: list[dict[str, Any]], num_workers: int) -> str:
    """One line per way to restore, medians over all ranks and runs."""
    head = ('num_workers', 'decision', 'its ms', 'its bytes', 'total s')
    lines = [f'{"check":<8}' + ''.join(f'{cell:>13}' for cell in head)]
    for way, workers in ('stock', 1), ('fast', num_workers):
        told = [run for rank in ranks for run in rank[way]]
        decisions = '/'.join(sorted({run['decision'] for run in told}))
        cells = (
            str(workers),
            decisions,
            f'{median(run["decision_seconds"] for run in told) * 1e3:.1f}',
            f'{median(run["decision_bytes"] for run in told):,.0f}',
            f'{median(run["seconds"] for run in told):.3f}',
        )
        lines.append(f'{way:<8}' + ''.join(f'{cell:>13}' for cell in cells))
    return '\n'.join(lines)


def verdict(ranks: list[dict[str, Any]]) -> int:
    """Whether every restore was local and gave what was saved."""
    told = [run for rank in ranks for way in rank.values() for run in way]
    wrong = [
        run for run in told if not run['equal'] or run['decision'] != 'local'
    ]
    if wrong:
        print(f'DIFFERENT: {len(wrong)} of {len(told)} restores: {wrong[0]}')
        return EXIT_FAILED
    print(
        f'\nVerified in all {len(told)} restores: the bytes of every tensor '
        'equal what was saved.'
    )
    return EXIT_OK
