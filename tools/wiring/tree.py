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

"""The tree as a patch sees it, and the record that each patch carries."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .imports import bound_names
from .merge import defined_names
from .module import MissingModule, Module
from .outcome import Change, Edit, Miss
from .source import TOP, Source, SourceError, decode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    Patch = Callable[['Tree'], None]

KINDS = ('permanent', 'temporary', 'environment-only')


@dataclass(frozen=True)
class PatchRecord:
    """What must be known of a patch beside its edits.

    Args:
        kind(str): `permanent`, `temporary` (until Paddle has it otherwise) or
            `environment-only` (never meant for Paddle).
        checked(str): the day on which it was last checked to be needed and
            to fit, `YYYY-MM-DD`.
        since(str): the first Paddle version that it fits.
        mark(tuple[str, str]): a file and a name in it that only a tree with
            this patch defines or imports; tells our work from somebody else's.
        needs(tuple[str, str]|None): a file and a definition in it that a tree
            must have, else the patch is skipped; None when `since` is not
            later than the first version that the series fits.
        link(str|None): for a temporary patch, the upstream change that will
            make it needless.
        tests(tuple[str, ...]): the patch's own tests and what they import,
            as patterns of paths relative to `test/`.
    """

    kind: str
    checked: str
    since: str
    mark: tuple[str, str]
    needs: tuple[str, str] | None = None
    link: str | None = None
    tests: tuple[str, ...] = ()


def patch(**fields: object) -> Callable[[Patch], Patch]:
    """Mark a function as a patch; the arguments are those of PatchRecord."""

    def mark(function: Patch) -> Patch:
        function.record = PatchRecord(**fields)
        return function

    return mark


class Tree:
    """A Paddle Python tree, to be edited by one patch.

    Args:
        root(Path): the directory `paddle/` of the tree.
        overlay(Path): our parts of it, in its layout.
        texts(dict[str, bytes]): files that earlier patches changed.
        mark(tuple[str, str]): see PatchRecord.
    """

    def __init__(
        self,
        root: Path,
        overlay: Path,
        texts: dict[str, bytes],
        mark: tuple[str, str],
    ) -> None:
        self._root = root
        self._overlay = overlay
        self._texts = texts
        self._modules: dict[str, Module | MissingModule] = {}
        self._new: dict[str, bytes] = {}
        self.edits: list[Edit] = []
        self.misses: list[Miss] = []
        self.is_ours = self.defines(*mark)

    def read(self, name: str) -> bytes | None:
        """A file's content; None when there is none."""
        if name in self._texts:
            return self._texts[name]
        path = self._root / name
        return path.read_bytes() if path.is_file() else None

    def defines(self, name: str, definition: str) -> bool:
        """Whether a module defines or imports a name at its top level."""
        data = self.read(name)
        if data is None:
            return False
        try:
            body = ast.parse(decode(data)[0]).body
        except (SourceError, SyntaxError, ValueError):
            return False
        return any(
            definition in defined_names(s) or definition in bound_names(s)
            for s in body
        )

    # ---- the verbs

    def file(self, name: str) -> Module | MissingModule:
        """A module of the tree, for its own verbs."""
        if name not in self._modules:
            self._modules[name] = self._open(name)
        return self._modules[name]

    def add(
        self, name: str, *, why: str, only: Collection[str] | None = None
    ) -> Module | MissingModule:
        """Add what our part of a module has; -> the module.

        Args:
            name(str): the module, relative to `paddle/`.
            why(str): the reason.
            only(Collection[str]|None): where several patches add to one
                module, the names that this patch needs; what they use of our
                part comes along. None for all.
        """
        module = self.file(name)
        try:
            ours = Source(decode(self._part(name))[0])
        except OSError as error:
            self._miss(name, 'our part of the module', str(error))
        except SourceError as error:
            self._miss(name, f'of our part {error.expected}', error.found)
        else:
            module.merge(ours, why, only)
        return module

    def new(self, name: str, *, why: str) -> None:
        """A whole module of ours, which no tree but ours has."""
        try:
            text = self._part(name)
        except OSError as error:
            self._miss(name, 'our module', str(error))
            return
        theirs = self.read(name)
        if theirs is None:
            self._new[name] = text
        elif theirs != text:
            self.conflict(name, TOP, 'another module of this name')
            return
        done = theirs is not None
        self.edits.append(Edit(name, TOP, 'new', why, done))

    def refuse(self, name: str, *, why: str) -> None:
        """Have a tree that has a certain file be left alone."""
        if self.read(name) is not None:
            found = f'this tree already has {name}: {why}'
            self.misses.append(Miss(name, TOP, '', found, True))

    # ---- what came of them

    def conflict(self, name: str, where: str, what: str) -> None:
        """Something stands in the place of ours that is not the same."""
        if self.is_ours:
            found = f'has {what}, from another version of this series'
            found += ' or edited since'
        else:
            found = f'already has {what}, which is not from this series'
        self.misses.append(
            Miss(name, where, '', found, not self.is_ours, self.is_ours)
        )

    def changes(self) -> dict[str, Change]:
        """The files that differ now; what cannot be joined is a miss."""
        changes = {n: Change(None, data) for n, data in self._new.items()}
        for name, module in self._modules.items():
            if isinstance(module, MissingModule):
                continue
            before = self.read(name)
            try:
                after = module.result()
                if after != before:
                    compile(after, name, 'exec', dont_inherit=True)
                    changes[name] = Change(before, after)
            except (ValueError, SyntaxError) as error:
                self._miss(name, 'a module that compiles', str(error))
        return changes

    def _part(self, name: str) -> bytes:
        return (self._overlay / name).read_bytes()

    def _open(self, name: str) -> Module | MissingModule:
        data = self.read(name)
        if data is None:
            self._miss(name, 'a module to edit', 'no such file')
            return MissingModule()
        try:
            return Module(self, name, data)
        except SourceError as error:
            self._miss(name, error.expected, error.found)
            return MissingModule()

    def _miss(self, name: str, expected: str, found: str) -> None:
        self.misses.append(Miss(name, TOP, expected, found))
