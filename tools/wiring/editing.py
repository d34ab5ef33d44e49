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

"""Putting text into a module at offsets, in the layout that is there.

All offsets are those of the text as it was read; the pieces are joined at
the end, so no edit sees another's result and untouched text stays untouched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .source import Source, decode

if TYPE_CHECKING:
    from collections.abc import Sequence

# Paddle's own line length: its formatter would break longer lines anyway.
LINE_LENGTH = 80


class EditError(ValueError):
    """Edits that cannot stand together."""


class Editor(Source):
    """A module's text and the pieces to be put into it.

    Args:
        data(bytes): the file's content.

    Raises:
        SourceError: not a module that can be edited with the rest untouched.
    """

    def __init__(self, data: bytes) -> None:
        text, self._layout = decode(data)
        super().__init__(text)
        self._pieces: list[tuple[int, int, str]] = []
        self._appended: dict[int, list[str]] = {}  # by closing bracket

    def put(self, start: int, end: int, text: str) -> None:
        """Have `text` stand in the place of what is from start to end."""
        self._pieces.append((start, end, text))

    def put_lines_after(
        self, at: int, text: str, indent: str | None = None
    ) -> None:
        """Lines of their own below the line of an offset."""
        if indent is None:
            indent = self.indent(at)
        end = self.line_end(at)
        self.put(end, end, f'\n{indent}{reindented(text, indent)}')

    def append(self, close: int, item: str) -> None:
        """One more item before a closing bracket, laid out as the rest."""
        self._appended.setdefault(close, []).append(item)

    def result(self) -> bytes:
        """The file's new bytes.

        Raises:
            EditError: two edits overlap.
        """
        for close, items in self._appended.items():
            self._put_appended(close, items)
        self._appended.clear()
        text, limit = self.text, len(self.text) + 1
        # At one offset, what was put first stands first.
        order = sorted(enumerate(self._pieces), key=lambda p: (p[1][0], p[0]))
        for _, (start, end, new) in reversed(order):
            if end > limit:
                line = self.line_number(start)
                raise EditError(f'two edits overlap in line {line}')
            text, limit = text[:start] + new + text[end:], start
        return self._layout.encode(text)

    def _put_appended(self, close: int, items: Sequence[str]) -> None:
        last = self.tokens[self.token_index(close) - 1]
        joined = ', '.join(items)
        if last.is_operator and last.string in '([{':
            self.put(last.end, last.end, joined)
        elif last.string != ',':
            self._put_after_last(close, last.end, joined, items)
        elif '\n' in self.text[last.end : close]:
            for item in items:
                self.put_lines_after(last.offset, f'{item},')
        else:
            self.put(last.end, last.end, f' {joined},')

    def _put_after_last(
        self, close: int, end: int, joined: str, items: Sequence[str]
    ) -> None:
        """Append where no comma ends the items, minding the line length.

        A line that gets too long is broken as the formatter does it: all
        items on one line of their own if they fit, else one line for each.
        """
        opening = next(o for o, c in self.closing.items() if c == close)
        inner = self.text[opening + 1 : close]
        line = self.text[self.line_start(end) : self.line_end(end)]
        if (
            len(line) + len(f', {joined}') <= LINE_LENGTH
            or '\n' in inner.strip()
            or self.has_comment(opening, close)
        ):
            self.put(end, end, f', {joined}')
            return
        outer = self.indent(opening)
        gap = f'\n{outer}    '
        first = opening + 1 + len(inner) - len(inner.lstrip())
        self.put(opening + 1, first, gap)
        if len(f'{gap[1:]}{inner.strip()}, {joined}') <= LINE_LENGTH:
            self.put(end, close, f', {joined}\n{outer}')
            return
        for comma in self._commas(opening, close):
            rest = self.text[comma + 1 : close]
            self.put(comma + 1, comma + 1 + len(rest) - len(rest.lstrip()), gap)
        more = ''.join(f',{gap}{item}' for item in items)
        self.put(end, close, f'{more},\n{outer}')

    def _commas(self, opening: int, close: int) -> list[int]:
        """Offsets of the commas directly within a pair of brackets."""
        found, i = [], self.token_index(opening) + 1
        while self.tokens[i].offset < close:
            token = self.tokens[i]
            if token.is_operator and token.string == ',':
                found.append(token.offset)
            partner = self.closing.get(token.offset)
            i = i + 1 if partner is None else self.token_index(partner) + 1
        return found


def reindented(text: str, indent: str) -> str:
    """Text whose second and later lines follow an indentation."""
    return text.replace('\n', f'\n{indent}')
