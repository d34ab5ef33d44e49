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

"""Where things stand in a module's text.

`ast` says which lines and columns a node covers, `tokenize` where brackets,
commas and comments are. Both are turned into offsets in one string, so that
an edit is a piece of text put at an offset and the rest stays as it was.

What does not belong here: any idea of what is edited, or why.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from bisect import bisect_left
from typing import NamedTuple

BYTE_ORDER_MARK = b'\xef\xbb\xbf'
TOP = '<module>'  # the top level, where a message names a function
_NO_TEXT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


class SourceError(ValueError):
    """A file that the verbs cannot work on.

    Args:
        expected(str): what a file must be.
        found(str): what this one is.
    """

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f'expected {expected}, but found {found}')
        self.expected = expected
        self.found = found


class Layout(NamedTuple):
    """How a file's bytes differ from the text that the verbs work on."""

    byte_order_mark: bool
    crlf: bool

    def encode(self, text: str) -> bytes:
        if self.crlf:
            text = text.replace('\n', '\r\n')
        mark = BYTE_ORDER_MARK if self.byte_order_mark else b''
        return mark + text.encode()


def decode(data: bytes) -> tuple[str, Layout]:
    """The text of a file with `\\n` line ends, and how to go back.

    Raises:
        SourceError: the bytes are not UTF-8, or line ends are mixed, so that
            the way back would not give the same bytes.
    """
    marked = data.startswith(BYTE_ORDER_MARK)
    try:
        text = data[len(BYTE_ORDER_MARK) if marked else 0 :].decode()
    except UnicodeDecodeError as error:
        raise SourceError('UTF-8', str(error)) from error
    crlf = '\r\n' in text
    if crlf:
        if re.search(r'(?<!\r)\n', text):
            raise SourceError('one kind of line end', r'both \n and \r\n')
        text = text.replace('\r\n', '\n')
    if '\r' in text:
        raise SourceError(r'\n or \r\n line ends', r'a lone \r')
    return text, Layout(marked, crlf)


class Token(NamedTuple):
    offset: int
    string: str
    is_operator: bool

    @property
    def end(self) -> int:
        return self.offset + len(self.string)


class Source:
    """A module's text, its syntax tree and its tokens, all by offset.

    Args:
        text(str): the module, with `\\n` line ends.

    Raises:
        SourceError: the text is not Python that this interpreter parses.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self.tree = ast.parse(text)
            self._lines = text.split('\n')
            self._starts = [0]
            for line in self._lines:
                self._starts.append(self._starts[-1] + len(line) + 1)
            self._tokenize()
        except (SyntaxError, ValueError, tokenize.TokenError) as error:
            raise SourceError('a module that parses', str(error)) from error

    def _tokenize(self) -> None:
        self.tokens: list[Token] = []
        self.comments: list[Token] = []
        self.closing: dict[int, int] = {}  # bracket offset -> its partner's
        open_brackets = []
        for t in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if t.type in _NO_TEXT or not t.string:
                continue
            at = self._starts[t.start[0] - 1] + t.start[1]
            is_operator = t.type == tokenize.OP
            token = Token(at, t.string, is_operator)
            if t.type == tokenize.COMMENT:
                self.comments.append(token)
                continue
            self.tokens.append(token)
            if is_operator and t.string in '([{':
                open_brackets.append(at)
            elif is_operator and t.string in ')]}':
                self.closing[open_brackets.pop()] = at

    def offset(self, line: int, column_bytes: int) -> int:
        """An `ast` position (its columns count UTF-8 bytes) as an offset."""
        before = self._lines[line - 1].encode()[:column_bytes].decode()
        return self._starts[line - 1] + len(before)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Offsets of a node's first character and of the one after its last."""
        return (
            self.offset(node.lineno, node.col_offset),
            self.offset(node.end_lineno, node.end_col_offset),
        )

    def code(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def token_index(self, at: int) -> int:
        """Index of the first token that starts at an offset or after it."""
        return bisect_left(self.tokens, at, key=lambda token: token.offset)

    def line_number(self, at: int) -> int:
        return self.text.count('\n', 0, at) + 1

    def line_start(self, at: int) -> int:
        return self.text.rfind('\n', 0, at) + 1

    def line_end(self, at: int) -> int:
        end = self.text.find('\n', at)
        return len(self.text) if end < 0 else end

    def indent(self, at: int) -> str:
        """The white space that begins the line of an offset."""
        line = self.text[self.line_start(at) : self.line_end(at)]
        return line[: len(line) - len(line.lstrip())]

    def is_first_on_line(self, at: int) -> bool:
        return not self.text[self.line_start(at) : at].strip()

    def has_comment(self, start: int, end: int) -> bool:
        return any(start <= c.offset < end for c in self.comments)

    def comment_block_start(self, at: int) -> int:
        """Start of the comment lines directly above the line of an offset."""
        start = self.line_start(at)
        while start:
            above = self.line_start(start - 1)
            if not self.text[above:start].lstrip().startswith('#'):
                break
            start = above
        return start


def first_line_start(source: Source, node: ast.AST) -> int:
    """Where a definition's first line starts, its decorators included."""
    decorators = getattr(node, 'decorator_list', [])
    line = min([node.lineno, *(d.lineno for d in decorators)])
    return source.offset(line, 0)


def same_code(one: ast.AST, other: ast.AST) -> bool:
    """Whether two nodes are the same code, spacing and quotes aside."""
    return ast.unparse(one) == ast.unparse(other)


def lines_found(nodes: list[ast.AST]) -> str:
    """How many nodes there are, and where, for a message."""
    if not nodes:
        return '0'
    lines = ', '.join(str(n) for n in sorted(n.lineno for n in nodes))
    word = 'line' if len(nodes) == 1 else 'lines'
    return f'{len(nodes)} ({word} {lines})'
