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

"""What an anchor names in a function: calls, and the statements of calls."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .source import same_code

if TYPE_CHECKING:
    from collections.abc import Sequence


class Anchor:
    """A call named by its function, or by its function and arguments."""

    def __init__(self, text: str) -> None:
        self._node = ast.parse(text, mode='eval').body

    @property
    def callee(self) -> str:
        node = self._node
        return ast.unparse(node.func if isinstance(node, ast.Call) else node)

    def matches(self, node: ast.AST | None) -> bool:
        if not isinstance(node, ast.Call):
            return False
        if isinstance(self._node, ast.Call):
            return same_code(node, self._node)
        return ast.unparse(node.func) == self.callee


def rows_of(node: ast.AST, anchors: Sequence[str]) -> list[list[ast.stmt]]:
    """The rows of statements whose calls the anchors name, one for each."""
    wanted = [Anchor(a) for a in anchors]
    rows = [
        body[i : i + len(wanted)]
        for body in bodies_of(node)
        for i in range(len(body) - len(wanted) + 1)
    ]
    return [
        row
        for row in rows
        if all(a.matches(_call_of(s)) for a, s in zip(wanted, row, strict=True))
    ]


def bodies_of(node: ast.AST) -> list[list[ast.stmt]]:
    """Every list of statements in a node."""
    fields = ('body', 'orelse', 'finalbody')
    bodies = [getattr(n, f, None) for n in ast.walk(node) for f in fields]
    return [b for b in bodies if isinstance(b, list)]


def _call_of(statement: ast.stmt) -> ast.expr | None:
    """What a statement calls, assigns from, or asserts something about."""
    if isinstance(statement, ast.Assert):
        test = statement.test
        return test.left if isinstance(test, ast.Compare) else test
    is_plain = isinstance(statement, (ast.Assign, ast.Expr))
    return statement.value if is_plain else None
