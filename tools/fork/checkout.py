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

"""Lays the series over a Paddle source tree, or shows it as a diff."""

from __future__ import annotations

import sys
from pathlib import Path

import wiring

from .console import EXIT_FAILED, EXIT_OK, EXIT_USAGE, ForkError, counted
from .link_tree import STAMP_NAME


def tree_root(checkout: Path) -> Path:
    """The directory that holds the package, in a checkout or by itself.

    Raises:
        ForkError: when `checkout` is no Paddle tree.
    """
    # A source checkout has a folder paddle/ of C++ too, so python/ first.
    for root in (checkout / 'python', checkout):
        if (root / 'paddle' / '__init__.py').is_file():
            return root
    found = 'found neither' if checkout.exists() else 'it does not exist'
    raise ForkError(
        f'{checkout}: expected a Paddle source checkout (python/paddle) or a '
        f'directory that holds the package paddle, but {found}',
        EXIT_USAGE,
    )


def apply(root: Path, overlay: Path, *, check: bool, verbose: bool) -> int:
    """Lays the series over the tree in `root`, all or nothing.

    Args:
        root(Path): the directory that holds the package.
        overlay(Path): our files.
        check(bool): only tell what would happen.
        verbose(bool): also list every edit with its reason.

    Returns:
        int: EXIT_OK, or EXIT_FAILED when the series does not fit.

    Raises:
        ForkError: not a source tree, or it could not be written.
    """
    refuse_installed(root)
    plan = wiring.plan(root, overlay)
    print(plan.report(verbose))
    if not plan.ok:
        return EXIT_FAILED
    if check:
        print('only checked, nothing is written')
        return EXIT_OK
    try:
        written = plan.write()
    except wiring.WriteError as error:
        raise ForkError(f'{root}: {error}') from error
    print(f'{counted(len(written), "file")} written')
    return EXIT_OK


def revert(root: Path) -> int:
    """Restores the bytes from before `apply`.

    Raises:
        ForkError: nothing to take back, or a file was edited since.
    """
    try:
        restored = wiring.revert(root)
    except wiring.WriteError as error:
        raise ForkError(str(error)) from error
    print(f'{root}: {counted(len(restored), "file")} restored')
    return EXIT_OK


def diff(root: Path, overlay: Path) -> int:
    """Prints the unified diff; what there is to say beside it on stderr."""
    plan = wiring.plan(root, overlay)
    sys.stdout.write(plan.diff())
    sys.stdout.flush()
    print(plan.report(), file=sys.stderr)
    return EXIT_OK if plan.ok else EXIT_FAILED


def refuse_installed(root: Path) -> None:
    """Refuses trees that are generated or that a package manager owns."""
    if (root / STAMP_NAME).exists():
        raise ForkError(
            f'{root}: expected a source tree, but this is a fork tree, which '
            'has the series already',
            EXIT_USAGE,
        )
    if any(root.glob('paddlepaddle*.dist-info')):
        raise ForkError(
            f'{root}: expected a source tree, but this is an installed '
            'Paddle; `build` makes a tree of links to one instead',
            EXIT_USAGE,
        )
