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

"""Imports in the order of isort: sections, then modules, then names."""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING

from .editing import LINE_LENGTH, reindented

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .module import Module

_Import = ast.Import | ast.ImportFrom

_FIRST_PARTY = 'paddle'
# isort's sections, in their order.
_FUTURE, _STANDARD, _THIRD_PARTY, _FIRST, _LOCAL = range(5)


class ImportBlock:
    """The imports of a module, or of its `if TYPE_CHECKING:` block.

    Args:
        module(Module): the module.
        where(str): the block's name in messages.
        statements(list[ast.stmt]): the block.
    """

    def __init__(
        self, module: Module, where: str, statements: list[ast.stmt]
    ) -> None:
        self.where = where
        self._module = module
        self._imports = [
            s for s in statements if isinstance(s, (ast.Import, ast.ImportFrom))
        ]
        self._new: list[_Import] = []

    def binding(self, alias: ast.alias) -> list[ast.stmt]:
        """The imports that bind the name that an import of ours binds."""
        name = _bound(alias)
        return [
            s for s in self._imports if name in [_bound(a) for a in s.names]
        ]

    @staticmethod
    def has(theirs: _Import, ours: _Import, alias: ast.alias) -> bool:
        """Whether an import brings the same thing under the same name."""
        return _origin(theirs) == _origin(ours) and any(
            (a.name, a.asname) == (alias.name, alias.asname)
            for a in theirs.names
        )

    def add(self, ours: _Import, names: Sequence[ast.alias]) -> None:
        """Import names that are not there yet."""
        if isinstance(ours, ast.Import):
            self._new += [ast.Import([name]) for name in names]
            return
        for theirs in self._imports:
            if _origin(theirs) == _origin(ours) and theirs.names[0].name != '*':
                for name in names:
                    self._put_name(theirs, name)
                return
        self._new.append(ast.ImportFrom(ours.module, [*names], ours.level))

    # ---- one more name in a statement

    def _put_name(self, statement: ast.ImportFrom, new: ast.alias) -> None:
        module, text = self._module, ast.unparse(new)
        _, end = module.span(statement)
        places = [module.span(a) for a in statement.names]
        earlier = [
            i
            for i, a in enumerate(statement.names)
            if _name_order(a) < _name_order(new)
        ]
        at = max(earlier, default=-1) + 1
        if at == len(places):
            if module.text[end - 1] == ')':
                module.append(end - 1, text)
            else:
                module.put(end, end, f', {text}')
            return
        following = places[at][0]
        if not module.is_first_on_line(following):
            module.put(following, following, f'{text}, ')
            return
        # On a line of its own, above the comments of the name that follows.
        line = module.comment_block_start(following)
        module.put(line, line, f'{module.indent(following)}{text},\n')

    # ---- new statements

    def finish(self) -> None:
        """Put the new statements where isort would have them."""
        if self._new and not self._imports:
            self._module.miss(self.where, 'imports to stand beside', '0')
            return
        for section in sorted({_order(s)[0] for s in self._new}):
            new = [s for s in self._new if _order(s)[0] == section]
            new.sort(key=_order)
            old = [s for s in self._imports if _order(s)[0] == section]
            if old:
                self._put_among(old, new)
            else:
                self._put_section(section, new)

    def _put_among(
        self, old: Sequence[_Import], new: Sequence[_Import]
    ) -> None:
        module = self._module
        for statement in new:
            smaller = [s for s in old if _order(s) < _order(statement)]
            if smaller:
                last = max(smaller, key=_order)
                start, end = module.span(last)
                indent = module.indent(start)
                text = _text(statement, indent)
                module.put_lines_after(end, text, indent)
                continue
            start, _ = module.span(min(old, key=_order))
            indent = module.indent(start)
            text = reindented(_text(statement, indent), indent)
            at = module.comment_block_start(start)
            if at == 0:  # below the comments that head the file
                at = module.line_start(start)
            module.put(at, at, f'{indent}{text}\n')

    def _put_section(self, section: int, new: Sequence[_Import]) -> None:
        module = self._module
        earlier = [s for s in self._imports if _order(s)[0] < section]
        anchor = max(earlier or self._imports[:1], key=lambda s: s.end_lineno)
        start, end = module.span(anchor)
        indent = module.indent(start)
        lines = [reindented(_text(s, indent), indent) for s in new]
        if earlier:
            at = module.line_end(end)
            text = ''.join(f'\n{indent}{line}' for line in lines)
            module.put(at, at, f'\n{text}')
        else:
            at = module.line_start(start)
            text = ''.join(f'{indent}{line}\n' for line in lines)
            module.put(at, at, f'{text}\n')


def _origin(statement: _Import) -> tuple[int, str | None] | None:
    """What an import imports from; None for a plain import."""
    if isinstance(statement, ast.Import):
        return None
    return statement.level, statement.module


def bound_names(statement: ast.stmt) -> list[str]:
    """The names that a statement imports; none if it is no import."""
    is_import = isinstance(statement, (ast.Import, ast.ImportFrom))
    return [_bound(a) for a in statement.names] if is_import else []


def _bound(alias: ast.alias) -> str:
    """The name that an import binds."""
    return alias.asname or alias.name.partition('.')[0]


def _order(statement: _Import) -> tuple:
    """isort's key of a statement; the section comes first."""
    if isinstance(statement, ast.Import):
        level, name = 0, statement.names[0].name
    else:
        level, name = statement.level, statement.module or ''
    package = name.partition('.')[0]
    if level:
        section = _LOCAL
    elif package == '__future__':
        section = _FUTURE
    elif package == _FIRST_PARTY:
        section = _FIRST
    elif package in sys.stdlib_module_names:
        section = _STANDARD
    else:
        section = _THIRD_PARTY
    is_from = isinstance(statement, ast.ImportFrom)
    return section, is_from, -level, name.lower(), name


def _name_order(alias: ast.alias) -> tuple:
    """isort's key of a name: CONSTANTS, Classes, the rest."""
    name = alias.name
    if len(name) > 1 and name.isupper():
        kind = 0
    else:
        kind = 1 if name[:1].isupper() else 2
    return kind, name.lower(), name


def _text(statement: _Import, indent: str) -> str:
    line = ast.unparse(statement)
    if len(indent) + len(line) <= LINE_LENGTH:
        return line
    head = line[: line.index(' import ')]
    names = ''.join(f'    {ast.unparse(a)},\n' for a in statement.names)
    return f'{head} import (\n{names})'
