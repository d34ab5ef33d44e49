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

"""The check of the series that needs no Paddle.

Patches are run against a recorder instead of a tree, so that every edit is
seen whatever a tree holds. All problems are listed.
"""

from __future__ import annotations

import ast
import datetime
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING

from .function import Function
from .imports import bound_names
from .merge import (
    defined_names,
    is_docstring,
    is_type_checking,
    our_names,
    with_uses,
)
from .module import Module
from .source import Source, SourceError, decode, first_line_start
from .tree import KINDS, PatchRecord, Tree

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from .tree import Patch

_VERSION = re.compile(r'\d+\.\d+\.\d+')
# Arguments that are code put into a function of Paddle's: one statement each.
_CODE = {
    'insert_before_return': 'text',
    'insert_at_start': 'text',
    'replace_statements': 'text',
    'enclose_statements': 'text',
    'guard_statements': 'text',
    'swap_call': 'text',
    'add_import': 'text',
}


class _Recorder:
    """Takes every verb of a tree, a module or a function, and checks it."""

    def __init__(self, kind: type, where: str, log: _Log) -> None:
        self._kind = kind
        self._where = where
        self._log = log

    def __getattr__(self, verb: str):
        method = getattr(self._kind, verb, None)
        if method is None or verb.startswith('_'):
            raise AttributeError(f'{self._where}: there is no verb {verb}')

        def call(*args: object, **kwargs: object) -> _Recorder | None:
            bound = inspect.signature(method).bind(self, *args, **kwargs)
            values = bound.arguments
            if verb == 'function':
                where = f'{self._where}: {values["name"]}'
                return _Recorder(Function, where, self._log)
            if self._kind is Tree and verb in ('add', 'new'):
                self._log.parts.add(values['name'])
            if self._kind is Tree and verb == 'add':
                self._log.takes(values['name'], values.get('only'))
            if verb != 'file':
                self._log.edit(self._where, verb, values)
            if self._kind is Tree and verb in ('add', 'file'):
                self._log.edited.add(values['name'])
                return _Recorder(Module, values['name'], self._log)
            return None

        return call


class _Log:
    """What the patches ask for, and what is wrong with it."""

    def __init__(self) -> None:
        self.parts: set[str] = set()
        self.edited: set[str] = set()
        self.problems: list[str] = []
        # By module, the names taken of our part; None for all of them.
        self.taken: dict[str, set[str] | None] = {}
        self._seen: set[tuple] = set()

    def takes(self, name: str, only: Collection[str] | None) -> None:
        taken = self.taken.setdefault(name, set())
        if only is None or taken is None:
            self.taken[name] = None
        else:
            taken.update(only)

    def edit(self, where: str, verb: str, values: dict) -> None:
        what = f'{where}: {verb}'
        if not str(values.get('why', '')).strip():
            self.problems.append(f'{what}: expected a reason, found none')
        plain = [v for k, v in values.items() if k not in ('self', 'why')]
        key = (where, verb, repr(plain))
        if key in self._seen:
            self.problems.append(f'{what}: the same edit twice')
        self._seen.add(key)
        text = values.get(_CODE.get(verb, ''))
        if text is not None:
            self._check_code(what, str(text))

    def _check_code(self, what: str, text: str) -> None:
        """All branching lives in our own modules."""
        try:
            body = ast.parse(text.replace('{callee}', 'callee')).body
        except SyntaxError as error:
            self.problems.append(f'{what}: expected Python: {error}')
            return
        if len(body) != 1 or not _is_simple(body[0]):
            self.problems.append(
                f'{what}: expected one simple statement, found: {text}'
            )


def _is_simple(statement: ast.stmt) -> bool:
    """No block; a return that hangs on a call of ours alone is allowed."""
    return not hasattr(statement, 'body') or (
        isinstance(statement, ast.If)
        and isinstance(statement.test, ast.Call)
        and not statement.orelse
        and len(statement.body) == 1
        and ast.unparse(statement.body[0]) == 'return'
    )


def edited_files(patches: Sequence[Patch]) -> set[str]:
    """The files of Paddle's that patches edit."""
    log = _Log()
    for patch in patches:
        patch(_Recorder(Tree, patch.__name__, log))
    return log.edited


def check(overlay: Path, patches: Sequence[Patch] | None = None) -> list[str]:
    """Everything that is wrong with the series by itself.

    Args:
        overlay(Path): our parts of `paddle/`, in its layout.
        patches(Sequence[Patch]|None): the patches; None for the series.

    Returns:
        list[str]: the problems; empty if there are none.
    """
    if patches is None:
        import series

        patches = series.PATCHES
    overlay, log = Path(overlay), _Log()
    names = [p.__name__ for p in patches]
    log.problems += [
        f'{name}: more than one patch of this name'
        for name in sorted(set(names))
        if names.count(name) > 1
    ]
    for patch in patches:
        log.problems += _record_problems(patch)
        try:
            patch(_Recorder(Tree, patch.__name__, log))
        except (AttributeError, TypeError) as error:
            log.problems.append(f'{patch.__name__}: {error}')
    have = {
        p.relative_to(overlay).as_posix()
        for p in overlay.rglob('*.py')
        if p.is_file()
    }
    log.problems += [
        f'{name}: expected our part of it, found none'
        for name in sorted(log.parts - have)
    ]
    log.problems += [
        f'{name}: no patch brings it into a tree'
        for name in sorted(have - log.parts)
    ]
    for name in sorted(log.parts & log.edited & have):
        log.problems += _part_problems(overlay / name, name)
        log.problems += _taken_problems(overlay / name, name, log.taken)
    return log.problems


def _record_problems(patch: Patch) -> list[str]:
    name, record = patch.__name__, getattr(patch, 'record', None)
    if not isinstance(record, PatchRecord):
        return [f'{name}: expected a record, found none']
    problems = []
    if not (patch.__doc__ or '').strip():
        problems.append(f'{name}: expected a docstring with the reason')
    if record.kind not in KINDS:
        problems.append(
            f'{name}: expected a kind out of {", ".join(KINDS)}, '
            f'but received {record.kind!r}'
        )
    if record.kind == 'temporary' and not record.link:
        problems.append(f'{name}: expected the link of a temporary patch')
    try:
        datetime.date.fromisoformat(record.checked)
    except (TypeError, ValueError):
        problems.append(
            f'{name}: expected a day YYYY-MM-DD in checked, '
            f'but received {record.checked!r}'
        )
    if not _VERSION.fullmatch(str(record.since)):
        problems.append(
            f'{name}: expected a version X.Y.Z in since, '
            f'but received {record.since!r}'
        )
    return problems


def _part_problems(path: Path, name: str) -> list[str]:
    """What of a part of ours would be lost when it is added."""
    try:
        source = Source(decode(path.read_bytes())[0])
    except SourceError as error:
        return [f'{name}: {error}']
    taken, problems = [], []
    previous = None  # the end of the definition right before
    for s in source.tree.body:
        start, end = source.span(s)
        end = source.line_end(end)
        is_definition = bool(defined_names(s))
        if is_definition and previous is None:
            start = source.comment_block_start(first_line_start(source, s))
        elif is_definition:
            start = previous
        elif not (
            isinstance(s, (ast.Import, ast.ImportFrom))
            or is_type_checking(s)
            or is_docstring(s)
        ):
            problems.append(
                f'{name}, line {s.lineno}: expected an import, a definition '
                f'or "if TYPE_CHECKING:", found another statement'
            )
        previous = end if is_definition else None
        taken.append((start, end))
    # Comments above and among the imports are about our part itself.
    started = taken[-1][1] if taken else 0
    started = next(
        (source.span(s)[0] for s in source.tree.body if defined_names(s)),
        started,
    )
    problems += [
        f'{name}, line {source.line_number(c.offset)}: no definition takes '
        f'this comment along'
        for c in source.comments
        if c.offset > started
        and not any(start <= c.offset < end for start, end in taken)
    ]
    return problems


def _taken_problems(
    path: Path, name: str, taken: dict[str, set[str] | None]
) -> list[str]:
    """What of a part of ours no patch brings into a tree."""
    only = taken.get(name)
    if only is None:
        return []
    try:
        body = Source(decode(path.read_bytes())[0]).tree.body
    except SourceError:
        return []  # told already
    names = our_names(body)
    used = with_uses(names, only)
    imported = {n for s in body for n in bound_names(s)}
    return [
        f'{name}: {ours}: no patch brings it into a tree'
        for ours in names
        if ours not in used and ours not in imported
    ]
