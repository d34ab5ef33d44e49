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

"""Compares paddle.load with what others do to load the same tensors.

Serial paddle.load, num_workers, both published designs of a parallel load
(`published.py`), torch.load, safetensors, and a memcpy, which is the limit of
every load that owns its memory. Each load is the first of its process, and all
that it gave is verified. What maps a file hands out views of the page cache
and has loaded nothing yet: `+ touch` is the time until one byte of every page
was read, too.

Peers are optional: `pip install --target build/peers -r
tools/bench/requirements-peers.txt`. What is missing is left out with a line.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if not __package__:  # run by its path
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from bench.common import (
    PRELOADED_MODULES,
    BenchError,
    Sample,
    WarmCopy,
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
    file_system,
    machine_facts,
    milliseconds,
    parse_bytes,
    positive_int,
    run,
    times,
    use_peers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEED = 20262

# In memory at once: a file for Paddle, torch and safetensors each, and twice
# the payload in the process that loads.
MEMORY_PER_PAYLOAD = 6

# How a load finds its file; of the rounds of a row, the last of these is told.
WARM, COLD, UNCHECKED, PARTLY_COLD = CACHES = (
    'warm',
    'cold',
    'cold, unchecked',
    'partly cold',
)

# The tensors of the file that is read from a disk.
COLD_TENSOR_BYTES = 16 << 20

COLUMNS = (
    Column('file', 'file'),
    Column('protocol', 'protocol'),
    Column('result', 'result'),
    Column('cache', 'cache'),
    Column('loader', 'way'),
    Column('ms', 'seconds', milliseconds),
    Column('min', 'seconds_min', milliseconds),
    Column('max', 'seconds_max', milliseconds),
    Column('GB/s', 'gb_per_s', '{:.2f}'.format),
    Column('speedup', 'speedup', times),
    Column('time / memcpy', 'of_limit', times),
    Column('peak / payload', 'peak_ratio', '{:.2f}'.format),
)


class Way(NamedTuple):
    """A way to load.

    Args:
        job(str): name of the loader in `peer_jobs`.
        file(str): what it reads: 'pickle', 'torch' or 'safetensors'.
        kind(str): of the tensors it gives: 'numpy', 'paddle' or 'torch'.
        options(dict): of the loader.
        needs(tuple[str, ...], optional): names of peers. Default: none.
        is_mapped(bool, optional): the tensors are views of the file. Default:
            False.
    """

    job: str
    file: str
    kind: str
    options: dict[str, Any]
    needs: tuple[str, ...] = ()
    is_mapped: bool = False


def paddle_ways(
    result: str, workers: tuple[int, ...], published: bool = True
) -> dict[str, Way]:
    """The ways to load a file of Paddle, serial first."""
    kind = 'numpy' if result == 'numpy' else 'paddle'
    options = {'return_numpy': result == 'numpy'}
    ways = {'paddle.load': Way('load_paddle', 'pickle', kind, options)}
    for count in workers:
        ways[f'num_workers={count}'] = Way(
            'load_paddle', 'pickle', kind, {**options, 'num_workers': count}
        )
    most = max(workers)
    designs = {'deferred fill': 'load_deferred', 'readinto': 'load_filling'}
    for name, job in designs.items() if published else ():
        ways[f'published: {name}, {most}'] = Way(
            job, 'pickle', kind, {**options, 'num_workers': most}
        )
    return ways


def peer_ways(result: str, num_workers: int) -> dict[str, Way]:
    """What others do, and what Paddle does with the files of others."""
    if result == 'numpy':
        job, kind, needs = 'load_safetensors_numpy', 'numpy', ('safetensors',)
        ways = {}
    else:
        job, kind = 'load_safetensors_torch', 'torch'
        needs = ('safetensors', 'torch', 'safetensors with torch')
        load_torch = functools.partial(
            Way, 'load_torch', 'torch', 'torch', needs=('torch',)
        )
        ways = {
            'torch.load': load_torch({'mmap': False}),
            'torch.load mmap': load_torch({'mmap': True}, is_mapped=True),
        }
    # Without a word about the backend, older versions have the first one too.
    # Its arrays of numpy are copies.
    load = functools.partial(Way, job, 'safetensors', kind)
    ways['safetensors mmap'] = load({}, needs, result == 'Tensor')
    ways['safetensors pread'] = load(
        {'backend': 'pread'}, (*needs, 'safetensors pread')
    )
    # Tensors are mapped by the library, whatever num_workers says.
    load = functools.partial(
        Way,
        'load_paddle',
        'safetensors',
        'numpy' if result == 'numpy' else 'paddle',
        needs=('safetensors',),
        is_mapped=result == 'Tensor',
    )
    options = {'safetensors': True, 'return_numpy': result == 'numpy'}
    ways['paddle.load safetensors'] = load(options)
    if result == 'numpy':
        ways[f'num_workers={num_workers}, safetensors'] = load(
            {**options, 'num_workers': num_workers}
        )
    return ways


def available(ways: dict[str, Way], missing: dict[str, str]) -> dict[str, Way]:
    """The ways whose peers are there."""
    return {
        name: way
        for name, way in ways.items()
        if not missing.keys() & set(way.needs)
    }


# ---- files


class Files(NamedTuple):
    """The same tensors, saved for each of the peers.

    Args:
        name(str): for the tables.
        layout(Layout): of Paddle's file; others are named after it.
        missing(dict): the peers that there are no files for.
    """

    name: str
    layout: Layout
    missing: dict[str, str]

    def of(self, kind: str) -> Layout:
        """The file of a kind."""
        path = self.layout.path
        return self.layout._replace(path=path.with_suffix(f'.{kind}'))

    def write(self, protocol: int) -> None:
        """Writes Paddle's file."""
        from bench import load_jobs

        payload = format_bytes(self.layout.payload_bytes)
        progress(f'writing {payload}, {self.name}, protocol {protocol}')
        call_fresh(load_jobs.save, self.of('pickle'), protocol)

    def write_for_peers(self) -> None:
        """Writes the files of the peers that are there."""
        from bench import peer_jobs

        for kind in 'torch', 'safetensors':
            if kind not in self.missing:
                progress(f'writing {self.name} for {kind}')
                save = getattr(peer_jobs, f'save_{kind}')
                call_fresh(save, self.of(kind))


def layouts(
    options: argparse.Namespace, path: Path, pool: Path
) -> Iterator[tuple[str, Layout]]:
    """Everything that is saved, by a name for the tables."""
    from bench import peer_jobs

    for tensor_bytes in options.sizes:
        count = max(1, options.total // tensor_bytes)
        name = f'{format_bytes(tensor_bytes)} tensors'
        shapes = equal_shapes(count, tensor_bytes)
        yield name, Layout(path, pool, shapes)
    if options.model != 'none':
        progress(f'one step of training of {options.model}')
        shapes = call_fresh(peer_jobs.model_shapes, options.model)
        yield f'{options.model} + Adam', Layout(path, pool, shapes)


def write_pool(layout: Layout) -> None:
    """Writes the words that a layout needs."""
    from bench import load_jobs

    load_jobs.write_pool(layout.pool, SEED, layout.pool_bytes)


# ---- measuring


def compare(
    files: Files,
    ways: dict[str, Way],
    limit: Callable[[], Sample],
    options: argparse.Namespace,
    evicted: bool = False,
    **columns: Any,
) -> list[dict[str, Any]]:
    """Measures ways to load the same tensors.

    Args:
        files(Files): that hold them.
        ways(dict): by their names; the first is what speedups are told
            against.
        limit(callable): measures the limit.
        options(Namespace): of the command.
        evicted(bool, optional): each load finds its file out of the cache.
            Default: False.
        columns(Any): of all rows.

    Returns:
        list[dict[str, Any]]: a row per way, and one for the limit.
    """
    from bench import peer_jobs

    def call(way: Way) -> Sample:
        layout = files.of(way.file)
        cache = state_of_cache(layout.path, evicted)
        sample = call_fresh(
            peer_jobs.timed_load,
            getattr(peer_jobs, way.job),
            layout,
            way.kind,
            way.is_mapped,
            **way.options,
        )
        return sample._replace(notes={**(sample.notes or {}), 'cache': cache})

    def call_limit() -> Sample:
        cache = state_of_cache(files.of('pickle').path, evicted)
        return limit()._replace(notes={'cache': cache})

    limit_name = 'read once' if evicted else 'memcpy'
    samples = run_rounds(
        {
            **{
                name: functools.partial(call, way)
                for name, way in available(ways, files.missing).items()
            },
            limit_name: call_limit,
        },
        options.rounds,
        ', '.join([files.name, *map(str, columns.values())]),
        settled_bytes=files.layout.payload_bytes,
    )
    return summarise(
        with_untouched(samples, not evicted),
        baseline='paddle.load',
        limit=limit_name,
        payload_bytes=files.layout.payload_bytes,
        file=files.name,
        **columns,
    )


def with_untouched(
    samples: dict[str, list[Sample]], keep: bool
) -> dict[str, list[Sample]]:
    """Tells mapped loads and touching apart.

    Args:
        samples(dict): by way; those of mapped loads carry notes.
        keep(bool): the time before a page was read is told, too.

    Returns:
        dict: with `+ touch` in the name of what was touched, and the least
        cold state of the cache in all notes of a way.
    """
    result = {}
    for name, group in samples.items():
        notes = [dict(sample.notes) for sample in group]
        cache = max((note.pop('cache') for note in notes), key=CACHES.index)
        told = [sample._replace(notes={'cache': cache}) for sample in group]
        if 'seconds' not in notes[0]:
            result[name] = told
            continue
        if keep:
            result[name] = [
                sample._replace(**note)
                for sample, note in zip(told, notes, strict=True)
            ]
        result[f'{name} + touch'] = told
    return result


def state_of_cache(path: Path, evicted: bool) -> str:
    """How a load finds its file, after it was evicted if that is asked for."""
    from bench import peer_jobs

    if not evicted:
        return WARM
    return {True: COLD, False: PARTLY_COLD, None: UNCHECKED}[
        peer_jobs.evict(path)
    ]


def measure_warm(
    folder: Path, options: argparse.Namespace, missing: dict[str, str]
) -> list[dict[str, Any]]:
    """Everything in memory, one layout after the other."""
    rows = []
    most = max(options.workers)
    for name, layout in layouts(
        options, folder / 'checkpoint', folder / 'pool'
    ):
        write_pool(layout)
        files = Files(name, layout, missing)
        files.write_for_peers()
        for protocol in options.protocols:
            files.write(protocol)
            memcpy = WarmCopy(files.of('pickle').path)
            for result in 'numpy', 'Tensor':
                if protocol == options.protocols[0]:
                    ways = {
                        **paddle_ways(result, options.workers),
                        **peer_ways(result, most),
                    }
                else:  # peers do not differ, nor do worker counts
                    ways = paddle_ways(result, (most,), published=False)
                rows += compare(
                    files,
                    ways,
                    memcpy,
                    options,
                    protocol=protocol,
                    result=result,
                )
            del memcpy
    return rows


class ColdRead:
    """Reads a file from its start to its end into memory used before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._target = np.zeros(path.stat().st_size, np.uint8)

    def __call__(self) -> Sample:
        target = memoryview(self._target)
        begin = time.perf_counter()
        done = 0
        with open(self._path, 'rb', buffering=0) as f:
            while count := f.readinto(target[done : done + (16 << 20)]):
                done += count
        return Sample(time.perf_counter() - begin, done)


def measure_cold(
    options: argparse.Namespace, missing: dict[str, str]
) -> list[dict[str, Any]]:
    """From a disk, each load after the system was told to forget the file."""
    parent = options.disk or Path(tempfile.gettempdir())
    kind = file_system(parent.resolve())
    if kind in ('tmpfs', 'ramfs') or not hasattr(os, 'posix_fadvise'):
        progress(
            f'{parent} is {kind}: no load from a disk is measured; give '
            'another place with --disk'
        )
        return []
    count = max(1, options.cold_total // COLD_TENSOR_BYTES)
    shapes = equal_shapes(count, COLD_TENSOR_BYTES)
    needs_bytes = 4 * count * COLD_TENSOR_BYTES
    with scratch_directory(needs_bytes, parent) as folder:
        layout = Layout(folder / 'checkpoint', folder / 'pool', shapes)
        write_pool(layout)
        name = f'{format_bytes(COLD_TENSOR_BYTES)} tensors, {kind}'
        files = Files(name, layout, missing)
        files.write_for_peers()
        files.write(options.protocols[0])
        most = max(options.workers)
        ways = {
            **paddle_ways('Tensor', (most,), published=False),
            **peer_ways('Tensor', most),
        }
        return compare(
            files,
            ways,
            ColdRead(files.of('pickle').path),
            options,
            evicted=True,
            protocol=options.protocols[0],
            result='Tensor',
        )


def check_memory(options: argparse.Namespace) -> None:
    """Refuses what the machine would have to kill.

    Raises:
        BenchError: there is not enough memory.
    """
    memory_bytes = available_memory()
    needs_bytes = MEMORY_PER_PAYLOAD * max(options.total, *options.sizes)
    if memory_bytes is not None and memory_bytes < needs_bytes:
        raise BenchError(
            f'expected {format_bytes(needs_bytes)} of available memory, but '
            f'found {format_bytes(memory_bytes)}. Give less with --total and '
            '--sizes.'
        )


def measure(
    options: argparse.Namespace,
) -> tuple[dict[str, Any], list[Part]]:
    """Everything, in the order of the report."""
    use_peers(options.peers)
    os.environ['PADDLE_BENCH_PEERS'] = str(options.peers)
    if 'bench.peer_jobs' not in PRELOADED_MODULES:
        PRELOADED_MODULES.append('bench.peer_jobs')
    from bench import peer_jobs

    if options.plot:
        can_draw()
    check_memory(options)
    missing = call_fresh(peer_jobs.missing_peers)
    for name, why in missing.items():
        progress(f'{name} is left out: {why}')
    largest_bytes = max(options.total, *options.sizes)
    # The model's files are 0.9 GB each.
    if options.model == 'wide_resnet50_2':
        largest_bytes = max(largest_bytes, 900 << 20)
    with scratch_directory(4 * largest_bytes, options.directory) as folder:
        facts = {
            **machine_facts(folder),
            **call_fresh(peer_jobs.peer_facts),
        }
        rows = measure_warm(folder, options, missing)
    if options.cold_total:
        rows += measure_cold(options, missing)
    return facts, [
        Part(
            'peers',
            f'{format_bytes(options.total)} in equal tensors, and a real '
            f'model; medians of {options.rounds} loads, each the first of its '
            'process, all bytes verified. Cold: the file is on a disk, and '
            'the system was told to forget it (posix_fadvise) before each '
            'load; a virtual disk may still be in the memory of its host.',
            COLUMNS,
            rows,
        )
    ]


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
        help='payload of a file of equal tensors; default: 512M, with\n'
        '--quick 16M',
    )
    result.add_argument(
        '--sizes',
        type=_sizes,
        metavar='SIZE,...',
        help='sizes of the tensors, one file each; default: 2M,16M,256M,\n'
        'with --quick 2M,16M',
    )
    result.add_argument(
        '--model',
        metavar='NAME',
        help='of paddle.vision.models, saved with the state of Adam, or none;\n'
        'default: wide_resnet50_2, with --quick squeezenet1_1',
    )
    result.add_argument(
        '--workers',
        type=_counts,
        metavar='N,...',
        default=(1, 2, 4, 8),
        help='worker counts; default: 1,2,4,8',
    )
    result.add_argument(
        '--protocols',
        type=_counts,
        metavar='N,...',
        default=(4, 5),
        help='pickle protocols; the first is that of all comparisons with\n'
        'peers; default: 4,5',
    )
    result.add_argument(
        '--disk',
        type=Path,
        metavar='DIR',
        help='put a file that is read from a cold cache in a directory of its\n'
        'own there; default: the directory for temporary files',
    )
    result.add_argument(
        '--no-cold', action='store_true', help='load nothing from a disk'
    )
    return result


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(positive_int, text.split(',')))


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(map(parse_bytes, text.split(',')))
    for size in sizes:
        if size % (1 << 20):
            raise argparse.ArgumentTypeError(
                f'expected multiples of 1M, but received {size}'
            )
    return sizes


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; `arguments` are those of the command line."""
    options = parser().parse_args(arguments)
    quick = options.quick
    if options.total is None:
        options.total = (16 if quick else 512) << 20
    if options.sizes is None:
        options.sizes = _sizes('2M,16M' if quick else '2M,16M,256M')
    if options.model is None:
        options.model = 'squeezenet1_1' if quick else 'wide_resnet50_2'
    options.cold_total = 0 if options.no_cold else options.total
    return run(measure, options)


if __name__ == '__main__':
    sys.exit(main())
