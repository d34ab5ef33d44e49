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

"""Adding our part of a module to the tree's module of the same name.

Our part holds imports, constants, functions, classes, and under
`if TYPE_CHECKING:` imports and classes; nothing else is taken. A class that
the tree has too gets the fields that it lacks. The tree's own definitions
are never replaced.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .imports import ImportBlock, bound_names
from .source import TOP, first_line_start, lines_found, same_code

if TYPE_CHECKING:
    from collections.abc import Collection, KeysView

    from .module import Module
    from .source import Source


class Merge:
    """One merge of a source of ours into a module.

    Args:
        module(Module): the tree's module.
        ours(Source): our part of it.
        why(str): the reason.
        verb(str): the verb to report.
        only(Collection[str]|None): the names wanted, with what they use; None
            for all.
    """

    def __init__(
        self,
        module: Module,
        ours: Source,
        why: str,
        verb: str = 'add',
        only: Collection[str] | None = None,
    ) -> None:
        self._module = module
        self._ours = ours
        self._why = why
        self._verb = verb
        names = our_names(ours.tree.body)
        self._taken = with_uses(names, names if only is None else only)
        self._shares = only is not None
        for name in sorted(set(only or ()) - set(names)):
            module.miss(name, f'{name} in our part', 'none')

    def merge(self) -> None:
        imports = ImportBlock(self._module, TOP, self._module.tree.body)
        previous = None
        for statement in self._ours.tree.body:
            if defined_names(statement):
                if self._taken.isdisjoint(defined_names(statement)):
                    previous = None
                    continue
                added = self._add_definition(statement, previous)
                previous = statement if added else None
                continue
            previous = None
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                self._add_import(statement, imports)
            elif is_type_checking(statement):
                self._merge_type_checking(statement)
            elif not is_docstring(statement):
                self._module.miss(
                    f'line {statement.lineno} of our part',
                    'an import, a definition or "if TYPE_CHECKING:"',
                    'another statement',
                )
        imports.finish()

    # ---- definitions

    def _add_definition(
        self, ours: ast.stmt, previous: ast.stmt | None
    ) -> bool:
        """Add a definition that is not there; -> whether it was added."""
        module, names = self._module, defined_names(ours)
        where = ', '.join(names)
        theirs = [
            s
            for s in module.tree.body
            if not names.isdisjoint(defined_names(s))
        ]
        if not theirs:
            self._append_definition(ours, previous)
            module.did(where, self._verb, self._why)
            return True
        text = _definition(self._ours, ours)
        if any(_definition(module, s) == text for s in theirs):
            # An earlier patch may have needed it too.
            if self._shares:
                module.same(where, self._verb, self._why)
            else:
                module.had(where, self._verb, self._why, where)
        elif len(theirs) == 1 and _extends(ours, theirs[0]):
            self._add_fields(ours, theirs[0])
        else:
            module.conflict(where, f'another {where}')
        return False

    def _append_definition(
        self, ours: ast.stmt, previous: ast.stmt | None
    ) -> None:
        """Put a definition, with its comments, at the end of the module."""
        module, source = self._module, self._ours
        end = source.line_end(source.span(ours)[1])
        at = len(module.text)
        if previous is not None:  # with all that is between them in our part
            start = source.line_end(source.span(previous)[1]) + 1
            gap = ''
        else:
            first = first_line_start(source, ours)
            start = source.comment_block_start(first)
            ended = at - len(module.text.rstrip('\n'))
            gap = '\n' * max(3 - ended, 0) if at else ''
        module.put(at, at, f'{gap}{source.text[start:end]}\n')

    def _add_fields(self, ours: ast.ClassDef, theirs: ast.ClassDef) -> None:
        """The fields that a class lacks, after its last statement."""
        module, where = self._module, f'class {theirs.name}'
        start, _ = module.span(theirs.body[0])
        if not module.is_first_on_line(start):
            module.miss(where, 'a body on lines of its own', 'it in one line')
            return
        _, end = module.span(theirs.body[-1])
        have = {
            ast.unparse(s.target): s
            for s in theirs.body
            if isinstance(s, ast.AnnAssign)
        }
        for field in ours.body:
            name = ast.unparse(field.target)
            if name not in have:
                text = self._ours.code(field)
                module.put_lines_after(end, text, module.indent(start))
                module.did(where, self._verb, self._why)
            elif same_code(have[name], field):
                module.same(where, self._verb, self._why)
            else:
                module.conflict(where, f'another field {name}')

    def _merge_type_checking(self, ours: ast.If) -> None:
        module = self._module
        if self._taken.isdisjoint(our_names(ours.body)):
            return
        blocks = [s for s in module.tree.body if is_type_checking(s)]
        if len(blocks) != 1:
            what = '1 block "if TYPE_CHECKING:"'
            module.miss(TOP, what, lines_found(blocks))
            return
        where = 'if TYPE_CHECKING'
        imports = ImportBlock(module, where, blocks[0].body)
        for statement in ours.body:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                self._add_import(statement, imports)
                continue
            if self._taken.isdisjoint(defined_names(statement)):
                continue
            names = ', '.join(defined_names(statement))
            found = [s for s in blocks[0].body if _extends(statement, s)]
            if len(found) == 1:
                self._add_fields(statement, found[0])
            else:
                what = f'1 class {names} of the same bases'
                module.miss(where, what, lines_found(found))
        imports.finish()

    # ---- imports

    def _add_import(
        self, ours: ast.Import | ast.ImportFrom, block: ImportBlock
    ) -> None:
        module, missing = self._module, []
        for alias, name in zip(ours.names, bound_names(ours), strict=True):
            if name not in self._taken:
                continue
            others = block.binding(alias)
            if not others:
                missing.append(alias)
            elif any(block.has(s, ours, alias) for s in others):
                module.same(block.where, self._verb, self._why)
            else:
                module.miss(
                    block.where,
                    f'no other import of {alias.asname or alias.name}',
                    lines_found(others),
                )
        if missing:
            block.add(ours, missing)
            module.did(block.where, self._verb, self._why)


def defined_names(statement: ast.stmt) -> KeysView[str]:
    """The names that a definition or an assignment binds, in order."""
    if isinstance(
        statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    ):
        return {statement.name: None}.keys()
    targets = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    names = [
        n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)
    ]
    return dict.fromkeys(names).keys()


def our_names(body: list[ast.stmt]) -> dict[str, set[str]]:
    """The names that statements of ours bind, each with the names it uses."""
    names: dict[str, set[str]] = {}
    for statement in body:
        used = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
        if is_type_checking(statement):
            names.update(our_names(statement.body))
        for name in defined_names(statement):
            names.setdefault(name, set()).update(used)
        for name in bound_names(statement):
            names.setdefault(name, set())
    return names


def with_uses(
    names: dict[str, set[str]], only: Collection[str]
) -> KeysView[str]:
    """Out of our names those wanted, what they use, and so on."""
    # Of no effect where nothing is annotated; else nothing works without it.
    taken, pending = {}, ['annotations', *only]
    while pending:
        name = pending.pop()
        if name in names and name not in taken:
            taken[name] = None
            pending += names[name]
    return taken.keys()


def is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def is_type_checking(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.If)
        and ast.unparse(statement.test)
        in ('TYPE_CHECKING', 'typing.TYPE_CHECKING')
        and not statement.orelse
    )


def _definition(source: Source, node: ast.stmt) -> str:
    return source.text[first_line_start(source, node) : source.span(node)[1]]


def _extends(ours: ast.stmt, theirs: ast.stmt) -> bool:
    """Whether a class of ours only lists fields for one of the tree's."""
    return (
        isinstance(ours, ast.ClassDef)
        and isinstance(theirs, ast.ClassDef)
        and ours.name == theirs.name
        and all(isinstance(s, ast.AnnAssign) for s in ours.body)
        and [*map(ast.unparse, ours.bases)] == [*map(ast.unparse, theirs.bases)]
    )
