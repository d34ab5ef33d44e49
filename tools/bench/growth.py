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

"""How the cost of loading and of deciding grows.

With the number of tensors in a file of one size, with the size of a file of
16 MiB tensors, and with the entries of a checkpoint's metadata. Each call is
the first of its process, and what it gave is verified.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run by its path
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.common import (
    available_memory,
    call_fresh,
    format_bytes,
    progress,
    run_rounds,
    scratch_directory,
    summarise,
)
from bench.layout import Layout, equal_shapes
from bench.plots import can_draw
from bench.report import (
    Column,
    Part,
    add_common_arguments,
    add_plot_arguments,
    machine_facts,
    milliseconds,
    parse_bytes,
    positive_int,
    run,
    times,
    use_peers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SEED = 20263

# Of the files that grow in size.
TENSOR_BYTES = 16 << 20

# What takes seconds a time varies little, and gets fewer rounds.
LARGE_BYTES = 2 << 30
LARGE_COUNT = 100_000
LARGE_ENTRIES = 300_000
LARGE_ROUNDS = 3

# In memory at once: the file, and two copies in the process that loads (or
# saves) it; and one that is left free.
MEMORY_PER_PAYLOAD = 4

TIME_COLUMNS = (
    Column('way', 'way'),
    Column('ms', 'seconds', milliseconds),
    Column('min', 'seconds_min', milliseconds),
    Column('max', 'seconds_max', milliseconds),
    Column('speedup', 'speedup', times),
    Column('rounds', 'verified_loads'),
)

COUNT_COLUMNS = (
    Column('tensors', 'count', '{:,}'.format),
    Column('of', 'tensor_bytes', format_bytes),
    Column('result', 'result'),
    *TIME_COLUMNS,
)

SIZE_COLUMNS = (
    Column('file', 'payload_bytes', format_bytes),
    Column('result', 'result'),
    *TIME_COLUMNS,
    Column('GB/s', 'gb_per_s', '{:.2f}'.format),
    Column('peak / payload', 'peak_ratio', '{:.2f}'.format),
)

DECISION_COLUMNS = (
    Column('entries', 'entries', '{:,}'.format),
    Column('metadata', 'metadata_bytes', format_bytes),
    Column('tensors', 'stored'),
    *TIME_COLUMNS,
    Column('peak memory', 'peak_bytes', format_bytes),
)


def affordable(
    sizes: Sequence[int], memory_bytes: int | None, per_size: int
) -> list[int]:
    """The sizes that the machine has room for; a line tells of the others.

    Args:
        sizes(Sequence[int]): in bytes.
        memory_bytes(int|None): what is available; None where nothing tells.
        per_size(int): how many times its size each takes.
    """
    if memory_bytes is None:
        return list(sizes)
    for size in sizes:
        if size * per_size > memory_bytes:
            progress(
                f'{format_bytes(size)} are left out: they need '
                f'{format_bytes(size * per_size)} of memory, and there are '
                f'{format_bytes(memory_bytes)}'
            )
    return [size for size in sizes if size * per_size <= memory_bytes]


def decades(first: int, last: int, step: int) -> list[int]:
    """`first`, and on by a factor of `step` up to `last`, which is the end."""
    values = []
    while first < last:
        values.append(first)
        first *= step
    return [*values, last]


# ---- loads


def compare_loads(
    folder: Path,
    shapes: dict[str, tuple[int, ...]],
    options: argparse.Namespace,
    what: str,
    **columns: Any,
) -> list[dict[str, Any]]:
    """Loads a new file, serially and in parallel, as numpy and as Tensors."""
    from bench import load_jobs

    layout = Layout(folder / 'checkpoint.pdparams', folder / 'pool', shapes)
    progress(f'writing {what}')
    load_jobs.write_pool(layout.pool, SEED, layout.pool_bytes)
    call_fresh(load_jobs.save, layout, 4)
    ways = {
        'paddle.load': {},
        f'num_workers={options.workers}': {'num_workers': options.workers},
    }
    results = {'numpy': True, 'Tensor': False}
    samples = run_rounds(
        {
            (result, way): functools.partial(
                call_fresh,
                load_jobs.timed_load,
                load_jobs.paddle_load,
                layout,
                return_numpy=return_numpy,
                **arguments,
            )
            for result, return_numpy in results.items()
            for way, arguments in ways.items()
        },
        rounds_for(
            layout.payload_bytes >= LARGE_BYTES or len(shapes) >= LARGE_COUNT,
            options.rounds,
        ),
        what,
        settled_bytes=layout.payload_bytes,
    )
    rows = []
    for result in results:
        rows += summarise(
            {way: samples[result, way] for way in ways},
            baseline='paddle.load',
            payload_bytes=layout.payload_bytes,
            result=result,
            **columns,
        )
    layout.path.unlink()
    return rows


def rounds_for(is_large: bool, rounds: int) -> int:
    """How many rounds something is measured."""
    return min(rounds, LARGE_ROUNDS) if is_large else rounds


def measure_counts(folder: Path, options: argparse.Namespace) -> Part:
    """Files of one size, of few tensors and of many."""
    rows = []
    for count in decades(10, options.counts, 10):
        tensor_bytes = options.count_total // count // 4 * 4
        rows += compare_loads(
            folder,
            equal_shapes(count, tensor_bytes),
            options,
            f'{count:,} tensors',
            count=count,
            tensor_bytes=tensor_bytes,
        )
    return Part(
        'tensor_counts',
        f'paddle.load of {format_bytes(options.count_total)} in more and more '
        'tensors, all bytes verified.',
        COUNT_COLUMNS,
        rows,
    )


def measure_sizes(folder: Path, options: argparse.Namespace) -> Part:
    """Files of more and more tensors of one size."""
    rows = []
    for size in options.sizes:
        shapes = equal_shapes(max(1, size // TENSOR_BYTES), TENSOR_BYTES)
        rows += [
            {**row, 'payload_bytes': len(shapes) * TENSOR_BYTES}
            for row in compare_loads(
                folder, shapes, options, f'{format_bytes(size)} file'
            )
        ]
    return Part(
        'file_sizes',
        f'paddle.load of larger and larger files of '
        f'{format_bytes(TENSOR_BYTES)} tensors, all bytes verified.',
        SIZE_COLUMNS,
        rows,
    )


# ---- decisions


def compare_decisions(
    checkpoint: Any,
    save: Callable[[Any], int],
    decisions: dict[str, Callable[[Any, dict], bool | None]],
    options: argparse.Namespace,
    stored: str,
) -> list[dict[str, Any]]:
    """Decides on a new checkpoint in the stock way and in ours."""
    from bench import resume_jobs

    entries = checkpoint.keys * checkpoint.ranks
    what = f'{entries:,} entries, {stored}'
    progress(f'writing {what}')
    metadata_bytes = call_fresh(save, checkpoint)
    for way, decide in decisions.items():
        # The stock check's answer is not in doubt where it takes long.
        if way != 'stock check' or entries < LARGE_ENTRIES:
            call_fresh(resume_jobs.verify_refusal, decide, checkpoint)
    samples = run_rounds(
        {
            way: functools.partial(
                call_fresh, resume_jobs.timed_decision, decide, checkpoint
            )
            for way, decide in decisions.items()
        },
        rounds_for(entries >= LARGE_ENTRIES, options.rounds),
        what,
    )
    shutil.rmtree(checkpoint.folder)
    return summarise(
        samples,
        baseline='stock check',
        entries=entries,
        metadata_bytes=metadata_bytes,
        stored=stored,
    )


def measure_decisions(folder: Path, options: argparse.Namespace) -> Part:
    """Checkpoints of few entries and of many."""
    from bench import resume_jobs

    rows = []
    for entries in decades(options.least_entries, options.entries, 10):
        size = max(1, entries // options.ranks), options.ranks
        rows += compare_decisions(
            resume_jobs.Replicated(folder / 'whole', *size),
            resume_jobs.save_replicated,
            {
                'stock check': resume_jobs.decide_stock,
                'fast check': resume_jobs.decide_fast,
            },
            options,
            'whole',
        )
        rows += compare_decisions(
            resume_jobs.Sharded(folder / 'split', *size),
            resume_jobs.save_sharded,
            {
                'stock check': resume_jobs.decide_stock,
                'storage check': resume_jobs.decide_by_storage,
            },
            options,
            'split',
        )
    return Part(
        'decisions',
        f'Deciding on a local restore of tensors that {options.ranks} ranks '
        'have saved whole, or split between them. All ways say yes, and no to '
        'a tensor of another shape.',
        DECISION_COLUMNS,
        rows,
    )


def measure(
    options: argparse.Namespace,
) -> tuple[dict[str, Any], list[Part]]:
    """Everything, in the order of the report."""
    use_peers(options.peers)
    if options.plot:
        can_draw()
    options.sizes = affordable(
        decades(options.smallest, options.total, 4),
        available_memory(),
        MEMORY_PER_PAYLOAD,
    )
    largest_bytes = max(*options.sizes, options.count_total)
    # Beside the largest file its pool, or a checkpoint and its metadata.
    needs_bytes = largest_bytes + ((64 if options.quick else 1024) << 20)
    with scratch_directory(needs_bytes, options.directory) as folder:
        facts = machine_facts(folder)
        parts = [
            measure_counts(folder, options),
            measure_sizes(folder, options),
            measure_decisions(folder, options),
        ]
    return facts, parts


def parser() -> argparse.ArgumentParser:
    """The options; where the default depends on --quick it is None."""
    result = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_common_arguments(result)
    add_plot_arguments(result)
    result.add_argument(
        '--total',
        type=parse_bytes,
        metavar='SIZE',
        help='payload of the largest file; the files of more and more tensors\n'
        'have an eighth of it; default: 4G, with --quick 64M',
    )
    result.add_argument(
        '--counts',
        type=positive_int,
        metavar='N',
        help='most tensors in a file; default: 100000, with --quick 100',
    )
    result.add_argument(
        '--entries',
        type=positive_int,
        metavar='N',
        help='most entries of the metadata; default: 1000000, with --quick\n'
        '1000',
    )
    result.add_argument(
        '--ranks',
        type=positive_int,
        metavar='N',
        help='ranks that the metadata names; default: 250, with --quick 10',
    )
    result.add_argument(
        '--workers',
        type=positive_int,
        metavar='N',
        default=8,
        help='of the parallel loads; default: 8',
    )
    return result


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; `arguments` are those of the command line."""
    options = parser().parse_args(arguments)
    defaults = {
        'total': (4 << 30, 64 << 20),
        'counts': (100_000, 100),
        'entries': (1_000_000, 1000),
        'ranks': (250, 10),
    }
    for name, values in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, values[options.quick])
    options.smallest = min(options.total, (32 if options.quick else 64) << 20)
    options.least_entries = 100 if options.quick else 10_000
    options.count_total = max(options.total // 8, 1 << 20)
    return run(measure, options)


if __name__ == '__main__':
    sys.exit(main())
