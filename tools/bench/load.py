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

"""Compares paddle.load with and without num_workers, and with a memcpy.

Two regimes. `warm`: one process loads again and again, so that its allocator
may have the memory already. `fresh`: each load is the first of its process,
which is what starting a training or a server sees; this gives the peak memory.
The memcpy copies the same bytes into memory that is used already; a load that
owns its memory cannot be faster than that by one thread.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
    from collections.abc import Iterator

SEED = 20260

# Files of tensors below this hold nothing that is read in parallel.
SMALL_TENSOR_BYTES = 256 * 1024

RESULTS = {'numpy': True, 'Tensor': False}

LOAD_COLUMNS = (
    Column('tensors', 'tensor_bytes', format_bytes),
    Column('protocol', 'protocol'),
    Column('result', 'result'),
    Column('process', 'regime'),
    Column('loader', 'way'),
    Column('ms', 'seconds', milliseconds),
    Column('min', 'seconds_min', milliseconds),
    Column('max', 'seconds_max', milliseconds),
    Column('GB/s', 'gb_per_s', '{:.2f}'.format),
    Column('speedup', 'speedup', times),
    Column('time / memcpy', 'of_limit', times),
    Column('peak / payload', 'peak_ratio', '{:.3f}'.format),
)

PLAN_COLUMNS = (
    Column('tensors', 'count'),
    Column('protocol', 'protocol'),
    Column('process', 'way'),
    Column('ms', 'seconds', milliseconds),
    Column('min', 'seconds_min', milliseconds),
    Column('max', 'seconds_max', milliseconds),
)


class Comparison(NamedTuple):
    """What is measured on one file in one go."""

    result: str
    regime: str
    workers: tuple[int, ...]


def comparisons(
    protocol: int, workers: tuple[int, ...], full: bool
) -> Iterator[Comparison]:
    """What is measured on a file.

    Everything takes a quarter of an hour, so that by default all worker
    counts are tried where they differ most, numpy results of protocol 4 in a
    warm process, and elsewhere the middle one. Protocol 5 differs in how
    payloads are stored, which numpy results in a fresh process show.

    Args:
        protocol(int): of the file.
        workers(tuple[int, ...]): worker counts.
        full(bool): everything everywhere.
    """
    middle = workers[len(workers) // 2 : len(workers) // 2 + 1]
    for result in RESULTS:
        for regime in 'warm', 'fresh':
            basic = (protocol, result, regime) == (4, 'numpy', 'warm')
            if full or protocol == 4 or (result, regime) == ('numpy', 'fresh'):
                yield Comparison(
                    result, regime, workers if full or basic else middle
                )


def compare_loads(
    checkpoint: Any, protocol: int, comparison: Comparison, rounds: int
) -> list[dict[str, Any]]:
    """Measures the loaders on a file.

    Args:
        checkpoint(Checkpoint): the file.
        protocol(int): of it.
        comparison(Comparison): what to measure.
        rounds(int): that count.

    Returns:
        list[dict[str, Any]]: a row per loader.

    Raises:
        VerificationError: a loader gave wrong bytes.
    """
    from bench import load_jobs

    is_warm = comparison.regime == 'warm'
    with Worker() as worker:
        load = functools.partial(
            worker if is_warm else call_fresh,
            load_jobs.timed_load,
            load_jobs.paddle_load,
            checkpoint,
            return_numpy=RESULTS[comparison.result],
        )
        calls = {
            'serial': functools.partial(load, num_workers=1),
            **{
                f'{count} workers': functools.partial(load, num_workers=count)
                for count in comparison.workers
            },
            'memcpy': WarmCopy(checkpoint.path),
        }
        samples = run_rounds(
            calls,
            rounds,
            f'{format_bytes(checkpoint.tensor_bytes)} tensors, protocol '
            f'{protocol}, {comparison.result}, {comparison.regime}',
            warmups=int(is_warm),
            settled_bytes=checkpoint.payload_bytes,
        )
    if is_warm:  # memory that was left by the load before is no peak of this
        samples = {
            way: [sample._replace(peak_bytes=None) for sample in group]
            for way, group in samples.items()
        }
    return summarise(
        samples,
        baseline='serial',
        limit='memcpy',
        payload_bytes=checkpoint.payload_bytes,
        tensor_bytes=checkpoint.tensor_bytes,
        protocol=protocol,
        result=comparison.result,
        regime=comparison.regime,
    )


def measure_loads(
    folder: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """All loads, one file after the other, of which only one is kept."""
    from bench import load_jobs

    pool = folder / 'pool'
    rows = []
    for tensor_bytes in options.sizes:
        total_bytes = (
            options.small_total
            if tensor_bytes < SMALL_TENSOR_BYTES
            else options.total
        )
        checkpoint = load_jobs.Checkpoint(
            folder / 'checkpoint.pdparams',
            pool,
            tensor_bytes,
            max(1, total_bytes // tensor_bytes),
        )
        write_pool(checkpoint)
        for protocol in options.protocols:
            progress(f'writing {format_bytes(checkpoint.payload_bytes)}')
            call_fresh(load_jobs.save, checkpoint, protocol)
            for comparison in comparisons(
                protocol, options.workers, options.full
            ):
                rows += compare_loads(
                    checkpoint, protocol, comparison, options.rounds
                )
            checkpoint.path.unlink()
    return rows


def write_pool(checkpoint: Any) -> None:
    """Writes as many words as the tensors of a checkpoint need."""
    from bench import load_jobs

    load_jobs.write_pool(
        checkpoint.pool,
        SEED,
        checkpoint.tensor_bytes + checkpoint.count * load_jobs.WORD_BYTES,
    )


def measure_plans(
    folder: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """How long it takes to find all tensors of a file of many."""
    from bench import load_jobs

    checkpoint = load_jobs.Checkpoint(
        folder / 'planned.pdparams',
        folder / 'pool',
        load_jobs.PLANNED_TENSOR_BYTES,
        load_jobs.PLANNED_TENSORS,
    )
    write_pool(checkpoint)
    rows = []
    for protocol in options.protocols:
        call_fresh(load_jobs.save, checkpoint, protocol)
        with Worker() as worker:
            samples = run_rounds(
                {
                    regime: functools.partial(
                        call, load_jobs.timed_plan, checkpoint
                    )
                    for regime, call in (
                        ('warm', worker),
                        ('fresh', call_fresh),
                    )
                },
                options.rounds,
                f'planning, protocol {protocol}',
                warmups=1,
            )
        rows += summarise(
            samples,
            baseline='warm',
            payload_bytes=checkpoint.payload_bytes,
            count=checkpoint.count,
            protocol=protocol,
        )
    return rows


def measure(
    options: argparse.Namespace,
) -> tuple[dict[str, Any], list[Part]]:
    """Everything, in the order of the report."""
    from bench import load_jobs

    largest_bytes = max(options.sizes)
    planned_bytes = load_jobs.PLANNED_TENSORS * load_jobs.PLANNED_TENSOR_BYTES
    needs_bytes = (
        max(options.total, options.small_total, largest_bytes, planned_bytes)
        + 2 * largest_bytes
    )
    with scratch_directory(needs_bytes, options.directory) as folder:
        facts = machine_facts(folder)
        loads = measure_loads(folder, options)
        plans = measure_plans(folder, options)
    total = format_bytes(options.total)
    small_total = format_bytes(options.small_total)
    return facts, [
        Part(
            'loads',
            f'paddle.load of {total} ({small_total} in tensors below '
            f'{format_bytes(SMALL_TENSOR_BYTES)}), '
            f'medians of {options.rounds}, all bytes verified.',
            LOAD_COLUMNS,
            loads,
        ),
        Part(
            'plans',
            'Planning a parallel load: the time to find all tensors.',
            PLAN_COLUMNS,
            plans,
        ),
    ]


def parser() -> argparse.ArgumentParser:
    """The options; where the default depends on --quick it is None."""
    result = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_common_arguments(result)
    result.add_argument(
        '--sizes',
        type=_sizes,
        metavar='SIZE,...',
        help='sizes of the tensors, one file each; default:\n'
        '256M,16M,2M,100K,16K, with --quick 16M,16K',
    )
    result.add_argument(
        '--total',
        type=parse_bytes,
        metavar='SIZE',
        help='payload of a file; default: 2G, with --quick 32M',
    )
    result.add_argument(
        '--small-total',
        type=parse_bytes,
        metavar='SIZE',
        help='payload of a file with small tensors only;\n'
        'default: 512M, with --quick 4M',
    )
    result.add_argument(
        '--workers',
        type=_counts,
        metavar='N,...',
        default=(2, 4, 8),
        help='worker counts; where only one is measured it is\n'
        'the middle one; default: 2,4,8',
    )
    result.add_argument(
        '--protocols',
        type=_counts,
        metavar='N,...',
        default=(4, 5),
        help='pickle protocols of the files; default: 4,5',
    )
    result.add_argument(
        '--full',
        action='store_true',
        help='every worker count and result everywhere; takes\n'
        'three times as long',
    )
    return result


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(positive_int, text.split(',')))


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(map(parse_bytes, text.split(',')))
    for size in sizes:
        if size % 4096:
            raise argparse.ArgumentTypeError(
                f'expected multiples of 4K, but received {size}'
            )
    return sizes


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; `arguments` are those of the command line."""
    options = parser().parse_args(arguments)
    quick = options.quick
    mebibyte = 1 << 20
    if options.sizes is None:
        options.sizes = _sizes('16M,16K' if quick else '256M,16M,2M,100K,16K')
    if options.total is None:
        options.total = (32 if quick else 2048) * mebibyte
    if options.small_total is None:
        options.small_total = (4 if quick else 512) * mebibyte
    return run(measure, options)


if __name__ == '__main__':
    sys.exit(main())
