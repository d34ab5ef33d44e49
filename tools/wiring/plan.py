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

"""The whole series against one tree: decided first, written later.

Each patch works on what the patches before it left. It is run a second time
on its own result, where every verb must find its work done; a patch that
misses anything leaves no trace, and the patches after it are still tried, so
that one report lists all there is to repair.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from . import writing
from .outcome import AlreadyApplied, Applied, Change, Failed, Outcome, Skipped
from .tree import PatchRecord, Tree
from .versions import Versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .tree import Patch

_PADDLE_FILES = ('__init__.py', 'framework/io.py')


class Plan:
    """What the series would do to a tree; nothing is written yet.

    Attributes:
        root(Path): the directory that holds `paddle/`.
        outcomes(list[Outcome]): one for each patch, in order.
        problem(str|None): why the tree as a whole is refused, or None.
        known(str): what is known of the tree's version.
        texts(dict[str, bytes]): the new content of every changed or new
            file, by its path relative to `paddle/`; empty unless `ok`.
    """

    def __init__(
        self,
        root: Path,
        outcomes: list[Outcome],
        known: str,
        proven: str,
        problem: str | None = None,
    ) -> None:
        self.root = root
        self.outcomes = outcomes
        self.known = known
        self.problem = problem
        self._proven = proven

    @property
    def ok(self) -> bool:
        """Whether nothing stands against writing."""
        failed = any(isinstance(o, Failed) for o in self.outcomes)
        return self.problem is None and not failed

    @property
    def changes(self) -> dict[str, Change]:
        """Every file that the series changes, before and after all patches."""
        changes: dict[str, Change] = {}
        if self.ok:
            for outcome in self._applied():
                for name, change in outcome.changes.items():
                    first = changes.get(name, change)
                    changes[name] = Change(first.before, change.after)
        return changes

    @property
    def texts(self) -> dict[str, bytes]:
        return {name: change.after for name, change in self.changes.items()}

    def report(self, verbose: bool = False) -> str:
        """The outcomes in words.

        Args:
            verbose(bool): also list every edit with its reason.
        """
        if self.problem is not None:
            return f'{self.root}: {self.problem}'
        lines = [f'{self.root}: {self.known}']
        for outcome in self.outcomes:
            lines += outcome.lines()
            if verbose:
                edits = getattr(outcome, 'edits', ())
                lines += dict.fromkeys(f'  {edit}' for edit in edits)
        if not self.ok:
            lines.append(
                f'nothing is written; the series is proven for Paddle '
                f'{self._proven}'
            )
        return '\n'.join(lines)

    def diff(self, patch: str | None = None) -> str:
        """A unified diff, as `git apply` takes it in a Paddle checkout.

        Args:
            patch(str|None): the name of one patch, for its diff against what
                the patches before it left; None for the whole series.
        """
        changes = self.changes
        if patch is not None:
            [outcome] = [o for o in self.outcomes if o.patch == patch]
            changes = getattr(outcome, 'changes', {})
        return ''.join(
            _file_diff(f'python/paddle/{name}', change)
            for name, change in sorted(changes.items())
        )

    def write(self) -> list[str]:
        """Write the series into the tree, all or nothing; -> file names.

        The originals are kept in the tree, so that `revert` can bring them
        back. Only for a source checkout: an installed wheel is never edited.

        Raises:
            ValueError: the plan is not `ok`.
            WriteError: a file was edited since the plan was made, or the
                disk refused; the tree is as it was before.
        """
        if not self.ok:
            raise ValueError(self.report())
        return writing.write(self.root, self.changes)

    def _applied(self) -> list[Applied]:
        return [o for o in self.outcomes if isinstance(o, Applied)]


def plan(
    root: Path,
    overlay: Path,
    patches: Sequence[Patch] | None = None,
    versions: Versions | None = None,
) -> Plan:
    """Decide what the series does to a tree; only reads.

    Args:
        root(Path): the directory that holds `paddle/`: site-packages, or
            `python/` of a source checkout.
        overlay(Path): our parts of `paddle/`, in its layout.
        patches(Sequence[Patch]|None): the patches; None for the series.
        versions(Versions|None): what was proven; None for the series' own.

    Returns:
        Plan: carries an outcome for each patch, failures included.
    """
    if patches is None or versions is None:
        import series

        patches = series.PATCHES if patches is None else patches
        versions = series.versions() if versions is None else versions
    root, paddle = Path(root), Path(root) / 'paddle'
    missing = [n for n in _PADDLE_FILES if not (paddle / n).is_file()]
    if missing:
        problem = (
            f'expected a Paddle Python tree (a directory that holds '
            f'paddle/), but found no paddle/{missing[0]}'
        )
        if (root / 'python' / 'paddle').is_dir():
            problem += f'; did you mean {root / "python"}?'
        return Plan(root, [], '', versions.names(), problem)
    texts: dict[str, bytes] = {}
    outcomes: list[Outcome] = []
    for function in patches:
        outcome = _try(function, paddle, Path(overlay), texts)
        outcomes.append(outcome)
        if isinstance(outcome, Applied):
            texts.update({n: c.after for n, c in outcome.changes.items()})
    return Plan(
        root,
        outcomes,
        _known(outcomes, paddle, versions),
        versions.names(),
        _incomplete(root, outcomes),
    )


def _incomplete(root: Path, outcomes: list[Outcome]) -> str | None:
    """Why patches miss what they wrote themselves; None if they do not."""
    if not any(isinstance(o, Failed) for o in outcomes):
        return None
    try:
        names, half = writing.gone(root), writing.half_written(root)
    except writing.WriteError:
        return None
    if half is not None and not names:
        return (
            f'expected the series to be written or not, but a run that did '
            f'not end left {half[0]} of {half[1]} files written; take them '
            f'back with --revert, then apply again'
        )
    if not names:
        return None
    return (
        f'expected paddle/{names[0]}, which the series wrote here, but found '
        f'no such file; take the rest back with --revert, then apply again'
    )


def _try(
    function: Patch, paddle: Path, overlay: Path, texts: dict[str, bytes]
) -> Outcome:
    """One patch on what the patches before it left."""
    name = function.__name__
    record = getattr(function, 'record', None)
    if not isinstance(record, PatchRecord):
        return Failed(name, ('expected a patch with a record, found none',))
    tree = Tree(paddle, overlay, texts, record.mark)
    if record.needs and not tree.defines(*record.needs):
        file, definition = record.needs
        reason = (
            f'{file} defines no {definition}; '
            f'fits Paddle {record.since} and later'
        )
        return Skipped(name, reason)
    function(tree)
    changes = tree.changes()
    if tree.misses:
        # Somebody else's work first: it explains the other misses.
        return Failed(name, tuple(sorted(tree.misses, key=_own_last)))
    if not changes:
        return AlreadyApplied(name, tuple(tree.edits))
    after = {n: c.after for n, c in changes.items()}
    again = Tree(paddle, overlay, {**texts, **after}, record.mark)
    function(again)
    if again.changes() or again.misses:
        left = [*map(str, again.misses), *again.changes()]
        return Failed(name, (f'would not be a no-op the second time: {left}',))
    return Applied(name, tuple(tree.edits), changes)


def _own_last(miss: object) -> bool:
    return not (miss.foreign or miss.other_version)


def _known(outcomes: list[Outcome], paddle: Path, versions: Versions) -> str:
    """What is known of a tree, from the files that are still Paddle's."""
    if not any(isinstance(o, (Applied, Failed)) for o in outcomes):
        return 'nothing left to apply'
    files = {n for hashes in versions.proven.values() for n in hashes}
    for outcome in outcomes:
        if isinstance(outcome, AlreadyApplied):
            files -= {edit.file for edit in outcome.edits}
    proven, known = versions.judge(paddle, files)
    if proven or any(isinstance(o, Failed) for o in outcomes):
        return known
    if any(isinstance(o, Skipped) for o in outcomes):
        return f'{known}, but what is not skipped fits'
    return f'{known}, but everything fits'


def _file_diff(path: str, change: Change) -> str:
    before = (change.before or b'').decode(errors='replace')
    lines = difflib.unified_diff(
        _lines(before),
        _lines(change.after.decode(errors='replace')),
        '/dev/null' if change.before is None else f'a/{path}',
        f'b/{path}',
    )
    return ''.join(
        line
        if line.endswith('\n')
        else line + '\n\\ No newline at end of file\n'
        for line in lines
    )


def _lines(text: str) -> list[str]:
    lines = text.split('\n')
    return [line + '\n' for line in lines[:-1]] + [x for x in lines[-1:] if x]
