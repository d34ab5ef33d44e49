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

"""Draws what `peers.py --json` and `growth.py --json` wrote.

`python tools/bench/plots.py FIGURES.json PLOT.png` draws it again.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run by its path
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.common import ROOT, progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# At this many dots per inch a plot is sharp in a README, and below 150 KB.
DOTS_PER_INCH = 110

# Told apart by people who see few colours too (Okabe and Ito).
OURS, STOCK, PUBLISHED, PEER, LIMIT = (
    '#0072b2',
    '#555555',
    '#e69f00',
    '#cc79a7',
    '#b8b8b8',
)

# What begins a way's name, and its colour; the first that fits.
COLOURS = (
    ('num_workers', OURS),
    ('paddle.load', STOCK),
    ('published', PUBLISHED),
    ('memcpy', LIMIT),
    ('', PEER),
)


def can_draw() -> bool:
    """Whether matplotlib is there; a line tells where it is not."""
    if importlib.util.find_spec('matplotlib') is None:
        progress(
            'no matplotlib (tools/bench/requirements-peers.txt): no plot is '
            'drawn; tools/bench/plots.py can draw it later from --json'
        )
        return False
    return True


def draw(report: dict[str, Any], path: Path) -> None:
    """Writes the plot of a report.

    Args:
        report(dict): as --json writes it.
        path(Path): of the PNG.
    """
    if not can_draw():
        return
    matplotlib = importlib.import_module('matplotlib')
    matplotlib.use('Agg')
    pyplot = importlib.import_module('matplotlib.pyplot')
    draw_figure = _draw_peers if 'peers' in report else _draw_growth
    figure = draw_figure(report, pyplot)
    figure.savefig(path, dpi=DOTS_PER_INCH)
    pyplot.close(figure)


# ---- peers


def bars(
    rows: Iterable[dict[str, Any]],
) -> dict[str, dict[str, tuple[float, float]]]:
    """What the plot of the peers shows: Tensors in memory.

    Returns:
        dict: for each file, (GB/s, ratio to serial) by the way's name.
    """
    rows = list(rows)
    shown = 'Tensor', rows[0]['protocol'], 'warm'
    ways = {row['way'] for row in rows}
    groups: dict[str, dict[str, tuple[float, float]]] = {}
    for row in rows:
        if (row['result'], row['protocol'], row['cache']) != shown:
            continue
        # A view of the page cache, of which no byte has been loaded yet.
        if f'{row["way"]} + touch' in ways:
            continue
        groups.setdefault(row['file'], {})[row['way']] = (
            row['gb_per_s'],
            row['speedup'],
        )
    return groups


def _colour(way: str) -> str:
    return next(colour for start, colour in COLOURS if way.startswith(start))


def _draw_peers(report: dict[str, Any], pyplot: Any) -> Any:
    groups = bars(report['peers'])
    figure, grid = pyplot.subplots(
        1, len(groups), figsize=(12, 4.4), sharey=True, squeeze=False
    )
    for axes, (file, ways) in zip(grid[0], groups.items(), strict=True):
        names = list(ways)
        speeds = [speed for speed, _ in ways.values()]
        axes.barh(names, speeds, color=list(map(_colour, names)))
        for number, (speed, ratio) in enumerate(ways.values()):
            axes.text(speed, number, f' {ratio:.1f}x', va='center', fontsize=7)
        axes.set_title(file, fontsize=9)
        axes.set_xlim(0, 1.25 * max(speeds))
        axes.tick_params(labelsize=8)
        axes.spines[['top', 'right']].set_visible(False)
        axes.set_xlabel('GB/s', fontsize=8)
    grid[0][0].invert_yaxis()
    machine = report['machine']
    figure.suptitle(
        f'Tensors in a fresh process from {machine["file_system"]}, '
        f'{machine["cores"]} cores; ratio to paddle.load',
        fontsize=10,
    )
    figure.tight_layout()
    return figure


# ---- growth


def lines(
    rows: Iterable[dict[str, Any]], x: str, name: Callable[[dict], str]
) -> dict[str, tuple[list[float], list[float]]]:
    """Seconds over the value of a column, by name of the line."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        xs, ys = found.setdefault(name(row), ([], []))
        xs.append(row[x])
        ys.append(row['seconds'])
    return found


def _draw_growth(report: dict[str, Any], pyplot: Any) -> Any:
    panels = (
        ('tensor_counts', 'count', 'tensors in a file of one size', 'result'),
        ('file_sizes', 'payload_bytes', 'bytes of the file', 'result'),
        ('decisions', 'entries', 'entries of the metadata', 'stored'),
    )
    figure, grid = pyplot.subplots(1, 3, figsize=(11, 4))
    for axes, (part, x, label, key) in zip(grid, panels, strict=True):
        found = lines(
            report[part], x, lambda row, key=key: f'{row["way"]}, {row[key]}'
        )
        kinds = sorted({row[key] for row in report[part]})
        for name, (xs, ys) in found.items():
            is_stock = name.startswith(('paddle.load', 'stock'))
            axes.loglog(
                xs,
                ys,
                label=name,
                color=STOCK if is_stock else OURS,
                linestyle='-' if name.endswith(kinds[0]) else '--',
                marker='o',
                markersize=3,
            )
        axes.set_xlabel(label, fontsize=8)
        axes.set_ylabel('seconds', fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(True, which='major', linewidth=0.4)
        axes.legend(fontsize=7)
    figure.tight_layout()
    return figure


def main(arguments: list[str] | None = None) -> int:
    """Draws again; `arguments` are those of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument('figures', type=Path, help='what --json wrote')
    parser.add_argument('plot', type=Path, help='the PNG to write')
    parser.add_argument(
        '--peers',
        type=Path,
        metavar='DIR',
        default=ROOT / 'build' / 'peers',
        help='where matplotlib may be; default: build/peers',
    )
    options = parser.parse_args(arguments)
    sys.path.append(str(options.peers))
    if not can_draw():
        return 1
    draw(json.loads(options.figures.read_text()), options.plot)
    return 0


if __name__ == '__main__':
    sys.exit(main())
