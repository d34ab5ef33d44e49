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

"""Arguments, help and exit codes of `paddle_fork.py`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from . import check, checkout, demo, export, harness
from .console import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, ForkError
from .project import Project

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_CODES = """\
exit codes:
  0  fine
  1  it does not fit, a test failed or none ran, or a step failed
  2  bad usage: unknown option, or a path that is not what it should be
"""

DESCRIPTION = """\
Lays this project's series over Paddle and runs the result.

The first run makes .venv in the project's folder (Paddle and the test
packages, about 1 GB, with pip) and build/python, a Paddle tree with the
series applied that links to the installed wheel. Later runs start at once.
The wheel is never changed. Needs Python 3.10+ and pip."""


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog='paddle_fork.py',
        description=DESCRIPTION,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(
        title='commands',
        metavar='COMMAND',
        required=True,
        description='`COMMAND --help` tells more.',
    )

    def add(run, name: str, summary: str, details: str = ''):
        command = commands.add_parser(
            name,
            help=summary,
            description=f'{summary[0].upper()}{summary[1:]}.\n{details}',
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.set_defaults(run=run, takes_more=False)
        return command

    add_demo(add)
    test = add(
        run_test,
        'test',
        'run all tests on the fork tree',
        '\nOther options go to ctest: -R REGEX (only these tests), -j N, -V.',
    )
    test.set_defaults(takes_more=True)
    test.add_argument(
        '--paddle-python',
        type=given_path,
        metavar='DIR',
        help='test the package paddle in DIR instead of the fork tree',
    )
    test.add_argument(
        '--sanitize',
        action='store_true',
        help='run the tests of loading, not those of tools/, under the '
        'AddressSanitizer of gcc, which finds accesses to memory that is '
        'free or not theirs',
    )
    add(
        run_build,
        'build',
        'set up only, and print the PYTHONPATH to use',
    )
    add_checkout_commands(add)
    add_series_commands(add)
    return parser


def add_demo(add) -> None:
    """The command `demo`."""
    command = add(
        run_demo,
        'demo',
        'load a real checkpoint serially and in parallel, and compare',
        '\nSaves a Wide ResNet-50-2 with its Adam state (0.8 GB) in a temporary '
        'directory,\nor takes your file; checks that both loads give the '
        'same bytes; prints\nseconds, GB/s, ratio and peak memory.\n\n'
        'Without a file of yours, two ranks (gloo) then save a distributed '
        'checkpoint\nand restore it with the stock and the fast check; prints '
        'the decision, its\ntime, the bytes read for it and the total time.',
    )
    command.add_argument(
        '--checkpoint',
        type=given_path,
        metavar='FILE',
        help='a file that paddle.load can read, instead of the example',
    )
    command.add_argument(
        '--num-workers',
        type=positive,
        default=8,
        metavar='N',
        help='workers of the parallel load (default: %(default)s)',
    )
    command.add_argument(
        '--runs',
        type=positive,
        default=3,
        metavar='N',
        help='loads per line, of which the median is shown '
        '(default: %(default)s)',
    )


def add_checkout_commands(add) -> None:
    """The commands `apply` and `diff`, which need no set-up."""
    tree_help = 'a Paddle source checkout, or a directory that holds paddle/'
    command = add(
        run_apply,
        'apply',
        'lay the series over a Paddle source checkout',
        '\nEverything is verified before anything is written. A tree that '
        'has the\nseries already stays as it is.',
    )
    command.add_argument('checkout', type=given_path, help=tree_help)
    mode = command.add_mutually_exclusive_group()
    mode.add_argument(
        '--check',
        action='store_true',
        help='change nothing, tell what would happen',
    )
    mode.add_argument(
        '--revert',
        action='store_true',
        help='restore the exact bytes from before',
    )
    command.add_argument(
        '-v',
        '--verbose',
        action='store_true',
        help='also list every edit with its reason',
    )
    command = add(
        run_diff,
        'diff',
        'show the series as a unified diff against a Paddle tree',
        '\nIts paths are those of a Paddle checkout, python/paddle/..., '
        'whatever the\ntree is.',
    )
    command.add_argument(
        'checkout',
        type=given_path,
        nargs='?',
        help=f'{tree_help} (default: the Paddle installed in .venv)',
    )


def add_series_commands(add) -> None:
    """The commands `check` and `export`."""
    command = add(
        run_check,
        'check',
        'tell which patches of the series fit a Paddle tree',
        '\nNothing is changed. A version is fetched once with pip, and its '
        'Python files\nare kept in build/sources.',
    )
    command.add_argument(
        'tree',
        type=given,
        nargs='*',
        help='a checkout, a directory that holds paddle/, a wheel, or a '
        'version such as 3.3.0 (default: the Paddle installed in .venv)',
    )
    command = add(
        run_export,
        'export',
        'write the series as patches for `git am`',
        '\nThe patches are generated from the last commit of the checkout, '
        'which is\nonly read. Each has its tests, and the tree is whole '
        'after each.',
    )
    command.add_argument(
        'checkout', type=given_path, help='a git repository of Paddle'
    )
    command.add_argument(
        '-o',
        '--output',
        type=given_path,
        required=True,
        metavar='DIR',
        help='where the patch files go; must hold none yet',
    )


def given(text: str) -> str:
    """Not empty, as an unset variable of a shell is."""
    if not text:
        raise argparse.ArgumentTypeError('expected a path, but it is empty')
    return text


def given_path(text: str) -> Path:
    """A path; `Path('')` would be the current directory."""
    return Path(given(text))


def positive(text: str) -> int:
    """A whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def run_build(options: argparse.Namespace) -> int:
    """`build`"""
    project = Project()
    project.set_up()
    # The one line on stdout, so that `$(paddle_fork.py build)` is of use.
    print(f'PYTHONPATH={project.tree}')
    return EXIT_OK


def run_test(options: argparse.Namespace) -> int:
    """`test`"""
    return harness.run_tests(
        Project(),
        options.more,
        options.paddle_python,
        sanitize=options.sanitize,
    )


def run_demo(options: argparse.Namespace) -> int:
    """`demo`"""
    return demo.run_demo(
        Project(), options.checkpoint, options.num_workers, options.runs
    )


def run_apply(options: argparse.Namespace) -> int:
    """`apply`"""
    root = checkout.tree_root(options.checkout)
    if options.revert:
        return checkout.revert(root)
    return checkout.apply(
        root,
        Project().overlay,
        check=options.check,
        verbose=options.verbose,
    )


def run_diff(options: argparse.Namespace) -> int:
    """`diff`"""
    project = Project()
    if options.checkout is None:
        root = project.base()
    else:
        root = checkout.tree_root(options.checkout)
    return checkout.diff(root, project.overlay)


def run_check(options: argparse.Namespace) -> int:
    """`check`"""
    return check.check(Project(), options.tree)


def run_export(options: argparse.Namespace) -> int:
    """`export`"""
    return export.export(Project(), options.checkout, options.output)


def end_on_signal(number: int, frame: object) -> NoReturn:
    """Lets `finally` clauses run, so that temporary files go."""
    sys.exit(128 + number)


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        args(Sequence, optional): the arguments. Default: None, those of the
            process.

    Returns:
        int: the exit code, as the help describes it.
    """
    try:
        try:
            return run_command(args)
        finally:
            # Also what argparse printed, before it ends the process.
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has enough of it. Python flushes once more
        # when it ends, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def run_command(args: Sequence[str] | None) -> int:
    """Runs one command; -> its exit code."""
    parser = build_parser()
    options, options.more = parser.parse_known_args(args)
    if options.more and not options.takes_more:
        parser.error(f'unrecognized arguments: {" ".join(options.more)}')
    for name in ('SIGTERM', 'SIGHUP'):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), end_on_signal)
    try:
        return options.run(options)
    except ForkError as error:
        print(f'paddle_fork.py: {error}', file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print('paddle_fork.py: interrupted', file=sys.stderr)
        return EXIT_INTERRUPTED
