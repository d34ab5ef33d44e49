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

"""The verbs of a module, and what its functions and merges report to.

A verb that finds the tree different from what it names records a `Miss`; one
that finds its result in place records an `Edit` that is done. None raises
for what the tree holds.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .editing import Editor
from .function import Function, MissingFunction
from .merge import Merge
from .outcome import Edit, Miss
from .source import TOP, Source, lines_found, same_code

if TYPE_CHECKING:
    from collections.abc import Collection

    from .tree import Tree


class Module(Editor):
    """A module of the tree, to be edited.

    Args:
        tree(Tree): gathers the edits and the misses.
        name(str): the module's path relative to `paddle/`.
        data(bytes): its content.

    Raises:
        SourceError: not a module that can be edited with the rest untouched.
    """

    def __init__(self, tree: Tree, name: str, data: bytes) -> None:
        super().__init__(data)
        self._tree = tree
        self.name = name

    # ---- what came of a verb

    def miss(self, where: str, expected: str, found: str) -> None:
        self._tree.misses.append(Miss(self.name, where, expected, found))

    def did(self, where: str, verb: str, why: str) -> None:
        self._tree.edits.append(Edit(self.name, where, verb, why))

    def had(self, where: str, verb: str, why: str, what: str) -> None:
        """A verb's result is in place: ours, or else somebody else's work."""
        if self._tree.is_ours:
            self.same(where, verb, why)
        else:
            self.conflict(where, what)

    def same(self, where: str, verb: str, why: str) -> None:
        """A verb's result is in place, whoever put it there."""
        self._tree.edits.append(Edit(self.name, where, verb, why, True))

    def conflict(self, where: str, what: str) -> None:
        """Something stands in the place of ours that is not the same."""
        self._tree.conflict(self.name, where, what)

    # ---- the verbs

    def function(self, name: str) -> Function | MissingFunction:
        """The one top-level function of that name, for its own verbs."""
        found = [
            s
            for s in self.tree.body
            if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef))
            and s.name == name
        ]
        if len(found) != 1:
            self.miss(name, '1 top-level function', lines_found(found))
            return MissingFunction()
        return Function(self, found[0])

    def merge(
        self, ours: Source, why: str, only: Collection[str] | None = None
    ) -> None:
        """What our part of the module has and this module lacks."""
        Merge(self, ours, why, only=only).merge()

    def add_import(self, text: str, *, why: str) -> None:
        """An import statement, in the place that isort gives it."""
        Merge(self, Source(text), why, verb='add_import').merge()

    def append_item(
        self, name: str, item: str, *, why: str, after: str | None = None
    ) -> None:
        """One more item of the list `name`, at its end or after another."""
        self.append_to_list(self.tree, TOP, name, item, after, why)

    def append_to_list(
        self,
        scope: ast.AST,
        where: str,
        name: str,
        item: str,
        after: str | None,
        why: str,
    ) -> None:
        """`append_item`, for the module as for a function."""
        found = [
            n.value
            for n in ast.walk(scope)
            if isinstance(n, ast.Assign)
            and isinstance(n.value, ast.List)
            and ast.unparse(n.targets[0]) == name
        ]
        if len(found) != 1:
            self.miss(where, f'1 list assigned to {name}', lines_found(found))
            return
        items = found[0].elts
        if places_of(item, items):
            self.had(where, 'append_item', why, f'{item} in {name}')
            return
        if after is None:
            self.append(self.span(found[0])[1] - 1, item)
        else:
            places = places_of(after, items)
            if len(places) != 1:
                what = f'{after} once in {name}'
                self.miss(where, what, lines_found(places))
                return
            self._put_item_after(self.span(places[0])[1], item)
        self.did(where, 'append_item', why)

    def _put_item_after(self, end: int, item: str) -> None:
        following = self.tokens[self.token_index(end)]
        rest = self.text[following.end : self.line_end(following.end)]
        if following.string == ',' and rest.lstrip()[:1] in ('', '#'):
            self.put_lines_after(following.offset, f'{item},')
        else:
            self.put(end, end, f', {item}')


class MissingModule:
    """Stands for a module that is not there: told once, then silent."""

    def function(self, name: str) -> MissingFunction:
        return MissingFunction()

    def merge(
        self, ours: Source, why: str, only: Collection[str] | None = None
    ) -> None:
        pass

    def add_import(self, text: str, *, why: str) -> None:
        pass

    def append_item(
        self, name: str, item: str, *, why: str, after: str | None = None
    ) -> None:
        pass


def places_of(code: str, nodes: list[ast.expr]) -> list[ast.expr]:
    """The nodes that are the same code, quotes and spacing aside."""
    wanted = ast.parse(code, mode='eval').body
    return [node for node in nodes if same_code(node, wanted)]
