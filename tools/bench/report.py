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

"""Options, tables and machine facts of the benchmarks."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .common import (
    ROOT,
    BenchError,
    call_fresh,
    format_bytes,
    progress,
    use_paddle,
)
from .plots import draw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

UNIT_BYTES = {'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30}


# ---- options


def parse_bytes(text: str) -> int:
    """A size such as 100K, 16M or 2G (powers of 1024).

    Raises:
        argparse.ArgumentTypeError: it is no positive size.
    """
    digits = text.rstrip('KMGkmg')
    unit = text[len(digits) :].upper()
    if not digits.isdecimal() or not int(digits) or len(unit) > 1:
        raise argparse.ArgumentTypeError(
            f'expected a size such as 100K, 16M or 2G, but received {text!r}'
        )
    return int(digits) * UNIT_BYTES.get(unit, 1)


def positive_int(text: str) -> int:
    """An argument that counts something.

    Raises:
        argparse.ArgumentTypeError: it is no integer above 0.
    """
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(
            f'expected a number above 0, but received {text!r}'
        )
    return int(text)


# ---- tables


class Column(NamedTuple):
    """A column of a table; `form` turns a value that is not None to text."""

    title: str
    key: str
    form: Callable[[Any], str] = str


def times(value: float) -> str:
    """A ratio."""
    return f'{value:.2f}x'


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds, to three digits where they are few."""
    value = seconds * 1e3
    return f'{value:.0f}' if value >= 1000 else f'{value:.3g}'


def _cells(
    columns: Sequence[Column], rows: Iterable[dict[str, Any]]
) -> list[list[str]]:
    return [
        [column.title for column in columns],
        *(
            [
                ''
                if row.get(column.key) is None
                else column.form(row[column.key])
                for column in columns
            ]
            for row in rows
        ),
    ]


def plain_table(
    columns: Sequence[Column], rows: Iterable[dict[str, Any]]
) -> str:
    """Rows as aligned text: the first column to the left, others right."""
    cells = _cells(columns, rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return '\n'.join(
        '  '.join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(
                zip(line, widths, strict=True)
            )
        ).rstrip()
        for line in cells
    )


def markdown_table(
    columns: Sequence[Column], rows: Iterable[dict[str, Any]]
) -> str:
    """Rows as a table of Markdown."""
    head, *body = (
        '| ' + ' | '.join(line) + ' |' for line in _cells(columns, rows)
    )
    rule = '|' + '---|' * len(columns)
    return '\n'.join([head, rule, *body])


# ---- machine


def machine_facts(directory: Path) -> dict[str, Any]:
    """What the figures depend on.

    Args:
        directory(Path): where the files are.

    Returns:
        dict[str, Any]: names and plain values, for people and for JSON.
    """
    facts = {
        'processor': _first(Path('/proc/cpuinfo'), 'model name', ':'),
        'cores': len(os.sched_getaffinity(0)),
        'memory_bytes': os.sysconf('SC_PAGE_SIZE')
        * os.sysconf('SC_PHYS_PAGES'),
        'load_average_before': round(os.getloadavg()[0], 2),
        'kernel': f'{platform.system()} {platform.release()}',
        'huge_pages': _huge_pages('enabled'),
        'huge_pages_in_tmpfs': _huge_pages('shmem_enabled'),
        'file_system': file_system(directory),
        'python': platform.python_version(),
        'numpy': np.__version__,
        'commit': _commit(),
    }
    return {**facts, **call_fresh(paddle_facts)}


def paddle_facts() -> dict[str, str]:
    """The version of Paddle, and the commit it was built from."""
    import paddle  # not needed by who only prints a table

    return {
        'paddle': paddle.__version__,
        'paddle_commit': paddle.version.commit,
    }


def _first(path: Path, name: str, separator: str | None = None) -> str | None:
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith(name):
                return line.split(separator, 1)[1].strip()
    return None


def _huge_pages(name: str) -> str | None:
    """The chosen one of several words, such as always, madvise, never."""
    path = Path('/sys/kernel/mm/transparent_hugepage', name)
    with contextlib.suppress(OSError):
        return path.read_text().partition('[')[2].partition(']')[0]
    return None


def file_system(directory: Path) -> str | None:
    """The kind of file system that a directory is on."""
    found = '', None
    with contextlib.suppress(OSError):
        for line in Path('/proc/mounts').read_text().splitlines():
            _, mount, kind, *_ = line.split()
            if directory.is_relative_to(mount) and len(mount) > len(found[0]):
                found = mount, kind
    return found[1]


def _commit() -> str | None:
    """The commit of this checkout, marked where files differ from it."""
    try:
        done = subprocess.run(
            ['git', 'describe', '--always', '--dirty', '--abbrev=12'],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    except OSError:
        return None
    return done.stdout.strip() or None


# ---- the command


class Part(NamedTuple):
    """A table of a report; `name` is its key in JSON."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: list[dict[str, Any]]


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that all benchmarks have."""
    parser.add_argument(
        '--rounds',
        type=positive_int,
        help='rounds that count; default: 5, with --quick 1',
    )
    parser.add_argument(
        '--quick',
        action='store_true',
        help='small totals, to see that it works; the figures mean nothing',
    )
    parser.add_argument(
        '--json', type=Path, metavar='FILE', help='write all figures there'
    )
    parser.add_argument(
        '--markdown', type=Path, metavar='FILE', help='write the tables there'
    )
    parser.add_argument(
        '--directory',
        type=Path,
        metavar='DIR',
        help='put the files in a directory of their own there; default: in '
        'memory (/dev/shm)',
    )
    parser.add_argument(
        '--paddle-python',
        type=Path,
        metavar='DIR',
        default=ROOT / 'build' / 'python',
        help='the directory that holds the package paddle; default: the fork '
        'tree of this checkout',
    )


def add_plot_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the benchmarks that draw."""
    parser.add_argument(
        '--plot',
        type=Path,
        metavar='FILE',
        help='write the plot there, a PNG; needs matplotlib',
    )
    parser.add_argument(
        '--peers',
        type=Path,
        metavar='DIR',
        default=ROOT / 'build' / 'peers',
        help='where requirements-peers.txt is installed (pip install\n'
        '--target), if not in this environment; default: build/peers',
    )


def use_peers(directory: Path) -> None:
    """Lets packages be found in a directory that are nowhere else."""
    if str(directory) not in sys.path:
        sys.path.append(str(directory))


def run(
    measure: Callable[[argparse.Namespace], tuple[dict, list[Part]]],
    options: argparse.Namespace,
) -> int:
    """Measures, prints and writes; turns errors into words and exit codes.

    Args:
        measure(callable): returns machine facts and tables.
        options(Namespace): with what `add_common_arguments` added.

    Returns:
        int: 0; 1 when it cannot measure or loaded wrong bytes; 130 after
        Ctrl-C.
    """
    if options.rounds is None:
        options.rounds = 1 if options.quick else 5
    try:
        use_paddle(options.paddle_python.resolve())
        with _unwinding_signals():
            facts, parts = measure(options)
    except KeyboardInterrupt:
        progress('interrupted; all files are removed')
        return 130
    except BenchError as error:
        progress(f'{type(error).__name__}: {error}')
        return 1
    print(plain_report(facts, parts))
    report = {
        'machine': facts,
        'rounds': options.rounds,
        **{part.name: part.rows for part in parts},
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + '\n')
    if options.markdown:
        options.markdown.write_text(markdown_report(facts, parts))
    if getattr(options, 'plot', None):
        draw(report, options.plot)
    return 0


@contextlib.contextmanager
def _unwinding_signals() -> Iterator[None]:
    """Lets them unwind the stack as Ctrl-C does, so that all files go.

    To be entered when Paddle is imported, which sets handlers of its own.
    """
    before = {
        number: signal.signal(number, _exit_on_signal)
        for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_on_signal(number: int, _: object) -> None:
    sys.exit(128 + number)


def plain_report(facts: dict[str, Any], parts: Sequence[Part]) -> str:
    """All tables as text."""
    blocks = [
        f'{part.title}\n\n{plain_table(part.columns, part.rows)}'
        for part in parts
    ]
    return '\n\n'.join([*blocks, _machine_line(facts)])


def markdown_report(facts: dict[str, Any], parts: Sequence[Part]) -> str:
    """All tables in Markdown."""
    blocks = [
        f'{part.title}\n\n{markdown_table(part.columns, part.rows)}'
        for part in parts
    ]
    return '\n\n'.join([*blocks, _machine_line(facts)]) + '\n'


def _machine_line(facts: dict[str, Any]) -> str:
    told = ', '.join(
        f'{name.replace("_", " ")}: '
        + (format_bytes(value) if name.endswith('_bytes') else str(value))
        for name, value in facts.items()
        if value is not None
    )
    return f'Measured on {told}.'
