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

"""Fuzzing that is guided by coverage: of the index and both readers.

The engine is libFuzzer, by way of atheris, which is not installed with the
rest (requirements-fuzz.txt). What follows `--` is for it, e.g.
`-max_total_time=300`, or the path of a file that it has left. The first
difference ends the run.

Files that a reader refuses are not given to the serial load here: numpy
crashes over some, which would end the run as well. `run.py` compares errors.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import random
import sys
import types
from pathlib import Path

if not __package__:  # run by its path
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.common import ROOT, BenchError, use_paddle

# What is watched; all of Paddle would be too much.
_DCP = 'paddle.distributed.flex_checkpoint.dcp'
INSTRUMENTED = [
    'paddle.framework.io_utils',
    f'{_DCP}.distcp_reader',
    f'{_DCP}.metadata_reader',
    f'{_DCP}.storage_reader',
]

# Two of three inputs are damaged with regard to their structure, the others
# by the engine's own means.
_STRUCTURED_SHARE = 0.67

# Small files are enough for all ways through a reader, and tried more often.
# A memo index may ask for any memory, which is limited otherwise.
ENGINE_OPTIONS = ('-max_len=8192', '-mutate_depth=2', '-rss_limit_mb=0')

# The beginning of an input chooses how it is checked.
_VARIANT_BYTES = 3


class DifferenceError(Exception):
    """A reader gives something else than the serial load."""


def _instrument(atheris):
    """Watch the functions of the modules, those of their classes included."""
    for name in INSTRUMENTED:
        module = importlib.import_module(name)
        owners = [module]
        owners += (v for v in vars(module).values() if isinstance(v, type))
        for owner in owners:
            for function in vars(owner).values():
                if (
                    isinstance(function, types.FunctionType)
                    and function.__module__ == name
                ):
                    atheris.instrument_func(function)


def _check(target, directory):
    from fuzz import compare, restricted, targets
    from fuzz.metadata import check_metadata

    def check(data):
        variant = int.from_bytes(data[:_VARIANT_BYTES], 'little')
        file = compare.Check(data[_VARIANT_BYTES:], variant, directory)
        if target == 'metadata':
            check_metadata(file)
        else:
            _check_distcp(file, targets, restricted)
        if file.findings:
            raise DifferenceError('; '.join(file.findings))

    return check


def _check_distcp(file, targets, restricted):
    path = file.write('0_0.distcp')
    targets.check_index(file, path)
    arrays = None
    if targets.scanned(path) is not None:
        with contextlib.suppress(Exception), open(path, 'rb') as f:
            arrays = restricted.load(f, encoding='latin1')
    targets.check_scan(file, path, arrays)


def _mutator(atheris, target):
    from fuzz import mutations, seeds, streams

    def mutate(data, max_bytes, engine_seed):
        rng = random.Random(engine_seed)
        variant, pickled = data[:_VARIANT_BYTES], data[_VARIANT_BYTES:]
        if rng.random() > _STRUCTURED_SHARE:
            return atheris.Mutate(data, max_bytes)
        pieces = streams.parse_most(pickled)
        if len(pieces) < 2:
            pieces = _any_seed(rng, seeds, target).pieces
        other = _any_seed(rng, seeds, target)
        damaged = mutations.mutate(
            rng, pieces, other.pieces, rng.choice(seeds.TARGETS_BYTES)
        )
        if rng.random() < 0.1 or len(variant) < _VARIANT_BYTES:
            variant = rng.randbytes(_VARIANT_BYTES)
        return (variant + damaged)[:max_bytes]

    return mutate


def _any_seed(rng, seeds, target):
    return seeds.seed(target, rng.randrange(seeds.SEEDS_PER_KIND))


def parser() -> argparse.ArgumentParser:
    """The options."""
    result = argparse.ArgumentParser(
        prog='tools/fuzz/guided.py',
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    result.add_argument(
        '--target',
        choices=('distcp', 'metadata'),
        default='distcp',
        help='which kind of files; default: distcp, with the index',
    )
    result.add_argument(
        '--python-tree',
        type=Path,
        default=ROOT / 'build' / 'python',
        metavar='DIR',
        help='which package paddle to test;\ndefault: build/python',
    )
    result.add_argument(
        'engine', nargs='*', metavar='OPTION', help='of the engine, after --'
    )
    return result


def main() -> int:
    """Runs the command until the engine ends it."""
    usage = parser()
    options = usage.parse_args()
    try:
        import atheris
    except ImportError:
        usage.error(
            'expected atheris, but it is not installed. '
            'Run `pip install -r tools/fuzz/requirements-fuzz.txt` first.'
        )
    try:
        use_paddle(options.python_tree)
    except BenchError as error:
        usage.error(f'--python-tree: {error}')
    import paddle

    from fuzz import compare, workers

    # The engine has its own.
    paddle.disable_signal_handler()
    _instrument(atheris)
    workers.limit_memory()
    with compare.scratch() as directory, compare.guarded():
        engine = [sys.argv[0], *ENGINE_OPTIONS]
        atheris.Setup(
            [*engine, *options.engine],
            _check(options.target, directory),
            custom_mutator=_mutator(atheris, options.target),
        )
        atheris.Fuzz()
    return 0


if __name__ == '__main__':
    # The engine ends the process itself.
    os.environ.setdefault('PYTHONHASHSEED', '0')
    sys.exit(main())
