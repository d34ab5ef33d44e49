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

"""Compares resuming from distributed checkpoints with the stock way.

Five parts: deciding between a local restore and a reshard on a checkpoint that
many ranks have saved whole, and on one that is split over them; loading the
metadata of the latter; learning the shapes in a data file; restoring on one
rank with and without num_workers. `warm` is one process that does it
again and again, `fresh` a process that does it for the first time.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run by its path
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.common import (
    WarmCopy,
    Worker,
    call_fresh,
    format_bytes,
    progress,
    run_rounds,
    scratch_directory,
    summarise,
)
from bench.report import (
    Column,
    Part,
    add_common_arguments,
    machine_facts,
    milliseconds,
    parse_bytes,
    positive_int,
    run,
    times,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SEED = 20261

TIME_COLUMNS = (
    Column('process', 'regime'),
    Column('way', 'way'),
    Column('ms', 'seconds', milliseconds),
    Column('min', 'seconds_min', milliseconds),
    Column('max', 'seconds_max', milliseconds),
    Column('speedup', 'speedup', times),
)

DECISION_COLUMNS = (
    *TIME_COLUMNS,
    Column('peak memory', 'peak_bytes', format_bytes),
)

SCAN_COLUMNS = (
    *TIME_COLUMNS,
    Column('read', 'bytes_read', format_bytes),
)

RESTORE_COLUMNS = (
    *TIME_COLUMNS,
    Column('time / memcpy', 'of_limit', times),
    Column('GB/s', 'gb_per_s', '{:.2f}'.format),
    Column('peak / payload', 'peak_ratio', '{:.3f}'.format),
)


def compare(
    ways: dict[str, Callable[..., Any]],
    rounds: int,
    what: str,
    others: dict[str, Callable[[], Any]] | None = None,
    **columns: Any,
) -> list[dict[str, Any]]:
    """Measures the ways to do a thing in both regimes.

    Args:
        ways(dict): does it in the process that it is given, by name of the
            way; speedups are told against the first.
        rounds(int): that count.
        what(str): the thing, for the progress lines.
        others(dict|None, optional): what is measured in this process.
            Default: None, nothing is.
        columns(Any): for `summarise`.

    Returns:
        list[dict[str, Any]]: a row per regime and way.
    """
    rows = []
    for regime in 'warm', 'fresh':
        with Worker() as worker:
            call = worker if regime == 'warm' else call_fresh
            samples = run_rounds(
                {
                    **{
                        name: functools.partial(way, call)
                        for name, way in ways.items()
                    },
                    **(others or {}),
                },
                rounds,
                f'{what}, {regime}',
                warmups=int(regime == 'warm'),
                settled_bytes=columns.get('payload_bytes', 0),
            )
        if regime == 'warm':  # memory that is left over makes no peak
            samples = {
                name: [sample._replace(peak_bytes=None) for sample in group]
                for name, group in samples.items()
            }
        rows += summarise(
            samples, baseline=next(iter(ways)), regime=regime, **columns
        )
    return rows


def compare_decisions(
    decisions: dict[str, Callable[..., Any]],
    checkpoint: Any,
    rounds: int,
    what: str,
) -> list[dict[str, Any]]:
    """Ways to decide, after each has refused what it should refuse.

    Args:
        decisions(dict[str, Callable]): of `resume_jobs`, by name.
        checkpoint(Replicated): what is decided on.
        rounds(int): how often in each regime.
        what(str): the thing, for the progress lines.

    Returns:
        list[dict[str, Any]]: a row per regime and way.
    """
    from bench import resume_jobs

    for decide in decisions.values():
        call_fresh(resume_jobs.verify_refusal, decide, checkpoint)
    return compare(
        {
            name: lambda call, decide=decide: call(
                resume_jobs.timed_decision, decide, checkpoint
            )
            for name, decide in decisions.items()
        },
        rounds,
        what,
    )


def measure_decisions(folder: Path, options: argparse.Namespace) -> Part:
    """Fast check and stock check on a replicated checkpoint."""
    from bench import resume_jobs

    checkpoint = resume_jobs.Replicated(
        folder / 'replicated', options.keys, options.ranks
    )
    progress(f'writing {options.keys} keys x {options.ranks} ranks')
    metadata_bytes = call_fresh(resume_jobs.save_replicated, checkpoint)
    decisions = {
        'stock check': resume_jobs.decide_stock,
        'fast check': resume_jobs.decide_fast,
    }
    rows = compare_decisions(decisions, checkpoint, options.rounds, 'decision')
    return Part(
        'decisions',
        f'Deciding on a local restore: {options.keys} tensors saved by '
        f'{options.ranks} ranks, {options.keys * options.ranks:,} entries in '
        f'{format_bytes(metadata_bytes)} of metadata. Both ways say yes, and '
        'no to a tensor of another shape.',
        DECISION_COLUMNS,
        rows,
    )


def measure_sharded(folder: Path, options: argparse.Namespace) -> list[Part]:
    """Stock check and check by storage on split tensors; metadata loads."""
    from bench import resume_jobs

    checkpoint = resume_jobs.Sharded(
        folder / 'sharded', options.keys, options.ranks
    )
    progress(f'writing {options.keys} keys split over {options.ranks} ranks')
    metadata_bytes = call_fresh(resume_jobs.save_sharded, checkpoint)
    decisions = {
        'stock check': resume_jobs.decide_stock,
        'check by storage': resume_jobs.decide_by_storage,
    }
    decided = compare_decisions(
        decisions, checkpoint, options.rounds, 'sharded decision'
    )
    loaded = compare(
        {
            name: lambda call, without_collector=without_collector: call(
                resume_jobs.timed_metadata_load, checkpoint, without_collector
            )
            for name, without_collector in (
                ('stock load', False),
                ('without collector', True),
            )
        },
        options.rounds,
        'metadata load',
    )
    what = (
        f'{options.keys} tensors split over {options.ranks} ranks, '
        f'{options.keys * options.ranks:,} entries in '
        f'{format_bytes(metadata_bytes)} of metadata'
    )
    return [
        Part(
            'sharded decisions',
            f'Deciding on a local restore: {what}. Both ways say yes, and no '
            'to a tensor of another shape.',
            DECISION_COLUMNS,
            decided,
        ),
        Part(
            'metadata loads',
            f'Loading and indexing the metadata for a reshard: {what}.',
            DECISION_COLUMNS,
            loaded,
        ),
    ]


def measure_scans(folder: Path, options: argparse.Namespace) -> Part:
    """A scan for shapes and a load of all tensors."""
    from bench import resume_jobs

    path = folder / 'scanned.distcp'
    progress(f'writing {options.tensors} tensors')
    call_fresh(resume_jobs.save_shapes, path, options.tensors)
    rows = compare(
        {
            name: lambda call, scan=scan: call(
                resume_jobs.timed_scan, scan, path, options.tensors
            )
            for name, scan in (
                ('paddle.load', resume_jobs.shapes_by_load),
                ('scan_tensor_shapes', resume_jobs.shapes_by_scan),
            )
        },
        options.rounds,
        'scan',
    )
    path.unlink()
    return Part(
        'scans',
        f'Learning the shapes of {options.tensors} tensors in a data file.',
        SCAN_COLUMNS,
        rows,
    )


def measure_restores(folder: Path, options: argparse.Namespace) -> Part | None:
    """load_state_dict with and without num_workers; None if it has none."""
    from bench import load_jobs, resume_jobs

    if not call_fresh(resume_jobs.has_num_workers):
        progress('load_state_dict has no num_workers here; not measured')
        return None
    checkpoint = load_jobs.Checkpoint(
        folder / 'state',
        folder / 'pool',
        options.tensor_size,
        max(1, options.total // options.tensor_size),
    )
    progress(f'writing {format_bytes(checkpoint.payload_bytes)}')
    load_jobs.write_pool(
        checkpoint.pool,
        SEED,
        checkpoint.tensor_bytes + checkpoint.count * load_jobs.WORD_BYTES,
    )
    call_fresh(resume_jobs.save_state, checkpoint)

    def way(restore: Callable[..., None], **arguments: int) -> Callable:
        return lambda call: call(
            resume_jobs.timed_restore, restore, checkpoint, **arguments
        )

    workers, cpus = options.num_workers, len(os.sched_getaffinity(0))
    rows = compare(
        {
            'load_state_dict': way(resume_jobs.restore),
            f'num_workers={workers}': way(
                resume_jobs.restore, num_workers=workers
            ),
            f'bare reads, {cpus} threads': way(
                resume_jobs.read_alone, num_threads=cpus
            ),
        },
        options.rounds,
        'restore',
        others={'memcpy': WarmCopy(checkpoint.path / '0_0.distcp')},
        limit='memcpy',
        payload_bytes=checkpoint.payload_bytes,
    )
    return Part(
        'restores',
        f'load_state_dict of {format_bytes(checkpoint.payload_bytes)} in '
        f'tensors of {format_bytes(checkpoint.tensor_bytes)} on one rank, all '
        'bytes verified, and bare reads of the same bytes to where the '
        'tensors are.',
        RESTORE_COLUMNS,
        rows,
    )


def measure(
    options: argparse.Namespace,
) -> tuple[dict[str, Any], list[Part]]:
    """Everything, in the order of the report."""
    # Of the largest part: data, pool and metadata.
    needs_bytes = options.total + 2 * options.tensor_size + (1 << 30)
    if options.quick:
        needs_bytes = options.total + 2 * options.tensor_size + (64 << 20)
    with scratch_directory(needs_bytes, options.directory) as folder:
        facts = machine_facts(folder)
        parts = [
            measure_decisions(folder, options),
            *measure_sharded(folder, options),
            measure_scans(folder, options),
            measure_restores(folder, options),
        ]
    return facts, [part for part in parts if part is not None]


def parser() -> argparse.ArgumentParser:
    """The options; where the default depends on --quick it is None."""
    result = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_common_arguments(result)
    counts = {
        '--keys': 'tensors of the replicated checkpoint; default: 4000,\n'
        'with --quick 50',
        '--ranks': 'ranks that saved it; default: 128, with --quick 4',
        '--tensors': 'tensors of the scanned file; default: 1000,\n'
        'with --quick 20',
    }
    for name, text in counts.items():
        result.add_argument(name, type=positive_int, metavar='N', help=text)
    result.add_argument(
        '--num-workers',
        type=positive_int,
        metavar='N',
        default=4,
        help='of the parallel restore; default: 4',
    )
    result.add_argument(
        '--total',
        type=parse_bytes,
        metavar='SIZE',
        help='payload to restore; default: 2G, with --quick 32M',
    )
    result.add_argument(
        '--tensor-size',
        type=parse_bytes,
        metavar='SIZE',
        default=16 << 20,
        help='of each tensor to restore, a multiple of 4K;\ndefault: 16M',
    )
    return result


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; `arguments` are those of the command line."""
    options = parser().parse_args(arguments)
    defaults = {
        'keys': (4000, 50),
        'ranks': (128, 4),
        'tensors': (1000, 20),
        'total': (2 << 30, 32 << 20),
    }
    for name, values in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, values[options.quick])
    return run(measure, options)


if __name__ == '__main__':
    sys.exit(main())
