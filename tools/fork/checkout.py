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

from .console import EXIT_FAILED, EXIT_OK, EXIT_USAGE, ForkError, step


def tree_root(checkout: Path) -> Path:
    """The directory that holds the package, in a checkout or by itself.

    Raises:
        ForkError: when `checkout` is no Paddle tree.
    """
    # A source checkout has a folder paddle/ of C++ too, so python/ first.
    for root in (checkout / 'python', checkout):
        if (root / 'paddle' / '__init__.py').is_file():
            return root
    raise ForkError(
        f'{checkout}: expected a Paddle source checkout (python/paddle) or a '
        'directory that holds the package paddle, but found neither',
        EXIT_USAGE,
    )


def apply(root: Path, overlay: Path, *, check: bool) -> int:
    """Lays the series over the tree in `root`, all or nothing.

    Args:
        root(Path): the directory that holds the package.
        overlay(Path): our files.
        check(bool): only tell what would happen.

    Returns:
        int: EXIT_OK, or EXIT_FAILED when the series does not fit.
    """
    plan = wiring.plan(root, overlay)
    print(plan.report())
    if not plan.ok:
        step(f'nothing was changed in {root}')
        return EXIT_FAILED
    if check:
        step(f'only checked: nothing was changed in {root}')
    else:
        plan.write()
    return EXIT_OK


def revert(root: Path) -> int:
    """Restores the bytes from before `apply`."""
    print(wiring.revert(root))
    return EXIT_OK


def diff(root: Path, overlay: Path) -> int:
    """Prints the unified diff; the report only when there is none."""
    plan = wiring.plan(root, overlay)
    if not plan.ok:
        print(plan.report(), file=sys.stderr)
        return EXIT_FAILED
    sys.stdout.write(plan.diff())
    return EXIT_OK
