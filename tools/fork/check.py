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

"""Which trees the series fits, patch by patch.

A tree is a checkout, a directory that holds `paddle/`, a wheel, or a released
version: then pip fetches its wheel once, and its Python files are kept in
`build/sources`. Nothing is imported and nothing is changed.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import wiring

from .checkout import tree_root
from .console import EXIT_FAILED, EXIT_OK, EXIT_USAGE, ForkError
from .wheel import download_wheel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .project import Project

_VERSION = re.compile(r'\d+(\.\d+)+\w*')


def check(project: Project, trees: Iterable[str]) -> int:
    """Prints, for each tree and patch, whether it fits.

    Args:
        project(Project): whose series.
        trees(Iterable[str]): paths or versions; none for the installed one.

    Returns:
        int: EXIT_OK when every patch fits, is there already, or is not meant
        for the version; else EXIT_FAILED.

    Raises:
        ForkError: not a tree, or pip found no such version.
    """
    fits = []
    for tree in trees or [str(project.base())]:
        with tempfile.TemporaryDirectory(prefix='paddle-check-') as scratch:
            root = find_root(project, tree, Path(scratch))
            plan = wiring.plan(root, project.overlay)
        print('\n'.join(listing(tree, plan)), flush=True)
        fits.append(plan.ok)
    return EXIT_OK if all(fits) else EXIT_FAILED


def find_root(project: Project, tree: str, scratch: Path) -> Path:
    """The directory that holds `paddle/`, which may be fetched first."""
    path = Path(tree)
    if path.is_file():
        extract_sources(path, scratch)
        return tree_root(scratch)
    if not path.exists() and _VERSION.fullmatch(tree):
        return released(project, tree, scratch)
    return tree_root(path)


def released(project: Project, version: str, scratch: Path) -> Path:
    """The Python files of a released version, kept once they are fetched."""
    kept = project.sources / version
    if not kept.is_dir():
        wheel = download_wheel(f'paddlepaddle=={version}', scratch / 'wheel')
        project.sources.mkdir(parents=True, exist_ok=True)
        partial = Path(
            tempfile.mkdtemp(prefix='.partial-', dir=project.sources)
        )
        try:
            extract_sources(wheel, partial)
            partial.replace(kept)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return kept


def extract_sources(wheel: Path, folder: Path) -> None:
    """Takes out the Python files of the package `paddle`.

    Raises:
        ForkError: the file is no wheel, or a damaged one.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(
                folder,
                [
                    name
                    for name in archive.namelist()
                    if name.startswith('paddle/') and name.endswith('.py')
                ],
            )
    except zipfile.BadZipFile as error:
        raise ForkError(
            f'{wheel}: expected a wheel, but received: {error}', EXIT_USAGE
        ) from error


def listing(tree: str, plan: wiring.Plan) -> list[str]:
    """What there is to say about a tree, a line or more for each patch."""
    if plan.problem is not None:
        return [f'{tree}: {plan.problem}']
    lines, failed = [f'{tree}: {plan.known}'], None
    for outcome in plan.outcomes:
        lines.append(f'  {outcome.patch}: {verdict(outcome, failed)}')
        if isinstance(outcome, wiring.Failed):
            failed = failed or outcome.patch
            lines += [f'    {cause}' for cause in outcome.causes]
    return lines


def verdict(outcome: wiring.Outcome, failed: str | None) -> str:
    """One patch in a few words; `failed` names an earlier one that misses."""
    if isinstance(outcome, wiring.Applied):
        return 'fits' if failed is None else f'fits, but needs {failed}'
    if isinstance(outcome, wiring.AlreadyApplied):
        return 'is there already'
    if isinstance(outcome, wiring.Skipped):
        return f'not for this tree: {outcome.reason}'
    if any(getattr(cause, 'foreign', False) for cause in outcome.causes):
        return 'does not fit: the tree has such a feature of its own'
    if any(getattr(cause, 'other_version', False) for cause in outcome.causes):
        return 'does not fit: the tree has another version of this series'
    return 'does not fit'
