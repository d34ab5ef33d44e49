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

"""The verbs of a function that the tree owns."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .anchors import Anchor, bodies_of, rows_of
from .editing import reindented
from .source import lines_found, same_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .module import Module


class Function:
    """A top-level function, to be edited.

    An anchor names a call: `f` or `a.f` for a call with any arguments,
    `f(x, y=1)` for one with exactly these.

    Args:
        module(Module): the module that holds it.
        node(ast.FunctionDef|ast.AsyncFunctionDef): its definition.
    """

    def __init__(
        self, module: Module, node: ast.FunctionDef | ast.AsyncFunctionDef
    ) -> None:
        self._module = module
        self._node = node

    def _miss(self, expected: str, found: str) -> None:
        self._module.miss(self._node.name, expected, found)

    def _did(self, verb: str, why: str) -> None:
        self._module.did(self._node.name, verb, why)

    def _had(self, verb: str, why: str, what: str) -> None:
        self._module.had(self._node.name, verb, why, what)

    def _conflict(self, what: str) -> None:
        self._module.conflict(self._node.name, what)

    # ---- lists and statements

    def append_item(
        self, name: str, item: str, *, why: str, after: str | None = None
    ) -> None:
        """One more item of the list `name`, at its end or after another."""
        self._module.append_to_list(
            self._node, self._node.name, name, item, after, why
        )

    def insert_before_return(self, text: str, *, why: str) -> None:
        """A statement before the return that ends the function."""
        if self._has_statement('insert_before_return', text, why):
            return
        module, last = self._module, self._node.body[-1]
        start, _ = module.span(last)
        if not isinstance(last, ast.Return):
            self._miss(
                'a return as the last statement',
                f'another (line {last.lineno})',
            )
        elif not module.is_first_on_line(start):
            self._miss('the last return on a line of its own', 'it shared')
        elif len(self._node.body) == 1:
            self._put_above(last, text)
            self._did('insert_before_return', why)
        else:
            _, end = module.span(self._node.body[-2])
            module.put_lines_after(end, text, module.indent(start))
            self._did('insert_before_return', why)

    def insert_at_start(self, text: str, *, why: str) -> None:
        """A statement before the first one, after the docstring."""
        if self._has_statement('insert_at_start', text, why):
            return
        module = self._module
        first = self._node.body[0]
        start, end = module.span(first)
        if not module.is_first_on_line(start):
            self._miss('the first statement on a line of its own', 'it shared')
            return
        if self._docstring():
            module.put_lines_after(end, text, module.indent(start))
        else:
            self._put_above(first, text)
        self._did('insert_at_start', why)

    def replace_statements(
        self, anchors: Sequence[str], text: str, *, why: str
    ) -> None:
        """One statement in the place of a row of them.

        Each is a bare call, an assignment of a call, or an assertion about
        one, that an anchor names.
        """
        ours = _statement(text)
        runs = rows_of(self._node, anchors)
        bodies = bodies_of(self._node)
        done = [s for b in bodies for s in b if same_code(s, ours)]
        if len(done) == 1 and not runs:
            self._had('replace_statements', why, f'"{ast.unparse(ours)}"')
            return
        if len(runs) != 1 or done:
            self._miss_row(anchors, runs)
            return
        start, _ = self._module.span(runs[0][0])
        _, end = self._module.span(runs[0][-1])
        indent = self._module.indent(start)
        self._module.put(start, end, reindented(text, indent))
        self._did('replace_statements', why)

    def enclose_statements(
        self, anchors: Sequence[str], text: str, *, why: str
    ) -> None:
        """A `with` around a row of statements, named as to replace them.

        Args:
            anchors(Sequence[str]): the calls of the row.
            text(str): the call that makes the context.
            why(str): the reason.
        """
        ours = _expression(text)
        callee = ast.unparse(ours.func)
        runs = rows_of(self._node, anchors)
        if len(runs) != 1:
            self._miss_row(anchors, runs)
            return
        [run] = runs
        around = [
            n
            for n in ast.walk(self._node)
            if isinstance(n, ast.With)
            and run[0] in n.body
            and ast.unparse(n.items[0]).startswith(f'{callee}(')
        ]
        if not around:
            self._put_head('enclose_statements', run, f'with {text}:', why)
        elif around[0].body == run and (
            [ast.unparse(i) for i in around[0].items] == [ast.unparse(ours)]
        ):
            self._had('enclose_statements', why, f'a with {callee}')
        else:
            self._conflict(f'another with {callee}')

    def guard_statements(
        self, anchors: Sequence[str], text: str, *, after: str, why: str
    ) -> None:
        """An `if` around the first row of statements behind a call.

        Args:
            anchors(Sequence[str]): the calls of the row.
            text(str): the condition.
            after(str): the anchor of the call.
            why(str): the reason.
        """
        ours = ast.parse(text, mode='eval').body
        anchor = Anchor(after)
        calls = [n for n in ast.walk(self._node) if anchor.matches(n)]
        if len(calls) != 1:
            self._miss(f'1 call of {after}', lines_found(calls))
            return
        rows = [
            row
            for row in rows_of(self._node, anchors)
            if row[0].lineno > calls[0].lineno
        ]
        if not rows:
            self._miss_row(anchors, rows)
            return
        row = min(rows, key=lambda row: row[0].lineno)
        if any(
            n.body == row and same_code(n.test, ours)
            for n in ast.walk(self._node)
            if isinstance(n, ast.If)
        ):
            self._had('guard_statements', why, f'"if {text}"')
        else:
            self._put_head('guard_statements', row, f'if {text}:', why)

    def _put_head(
        self, verb: str, run: list[ast.stmt], head: str, why: str
    ) -> None:
        module = self._module
        start, end = module.span(run[0])[0], module.span(run[-1])[1]
        rest = module.text[end : module.line_end(end)].lstrip()
        first, last = module.token_index(start), module.token_index(end)
        if not module.is_first_on_line(start) or rest[:1] not in ('', '#'):
            self._miss('the row on lines of its own', 'them shared')
        elif any('\n' in t.string for t in module.tokens[first:last]):
            self._miss('no string of several lines in the row', 'one')
        else:
            deeper = re.sub(r'\n(?=[^\n])', '\n    ', module.text[start:end])
            indent = module.indent(start)
            head = reindented(head, indent)
            module.put(start, end, f'{head}\n{indent}    {deeper}')
            self._did(verb, why)

    def _miss_row(
        self, anchors: Sequence[str], rows: list[list[ast.stmt]]
    ) -> None:
        self._miss(
            f'1 row of statements that call {", ".join(anchors)}',
            lines_found([row[0] for row in rows]),
        )

    def _has_statement(self, verb: str, text: str, why: str) -> bool:
        ours = _statement(text)
        if any(same_code(s, ours) for s in self._node.body):
            self._had(verb, why, f'"{ast.unparse(ours)}"')
            return True
        return False

    def _put_above(self, statement: ast.stmt, text: str) -> None:
        """Lines above a statement and the comments that belong to it."""
        module = self._module
        start, _ = module.span(statement)
        at, indent = module.comment_block_start(start), module.indent(start)
        module.put(at, at, f'{indent}{reindented(text, indent)}\n')

    # ---- calls

    def swap_call(
        self,
        anchors: Sequence[str],
        text: str,
        *,
        why: str,
        times: int = 1,
    ) -> None:
        """Another call in the place of one; `{callee}` keeps the old name."""
        results = [
            _expression(_with_callee(text, Anchor(a).callee)) for a in anchors
        ]
        ours = ast.unparse(results[0].func)
        calls = self._calls([*anchors, ours], times)
        for call in calls:
            if ast.unparse(call.func) != ours:
                start, end = self._module.span(call)
                new = _with_callee(text, ast.unparse(call.func))
                indent = self._module.indent(start)
                self._module.put(start, end, reindented(new, indent))
                self._did('swap_call', why)
            elif any(same_code(call, result) for result in results):
                self._had('swap_call', why, f'a call of {ours}')
            else:
                self._conflict(f'another call of {ours}')

    def wrap_call(
        self, anchor: str, text: str, *, why: str, times: int = 1
    ) -> None:
        """A call around one; `{call}` is where that one then stands."""
        for call in self._calls([anchor], times):
            ours = _expression(text.replace('{call}', ast.unparse(call)))
            around = [
                n
                for n in ast.walk(self._node)
                if isinstance(n, ast.Call)
                and call in n.args
                and same_code(n.func, ours.func)
            ]
            if around and same_code(around[0], ours):
                self._had('wrap_call', why, ast.unparse(ours.func))
            elif around:
                self._conflict(f'another call of {ast.unparse(ours.func)}')
            else:
                start, end = self._module.span(call)
                indent = self._module.indent(start)
                # The lines of the old call move as far in as its first one.
                deeper = re.search(r'( *)\{call\}', text)[1]
                inner = reindented(self._module.code(call), deeper)
                new = reindented(text, indent).replace('{call}', inner)
                self._module.put(start, end, new)
                self._did('wrap_call', why)

    def add_argument(
        self,
        anchor: str,
        text: str,
        *,
        why: str,
        times: int = 1,
        having: str | None = None,
    ) -> None:
        """One more keyword argument of a call.

        Args:
            anchor(str): the call.
            text(str): the argument, `name=value`.
            why(str): the reason.
            times(int): how many such calls there are.
            having(str|None): a positional argument's text or a keyword that
                tells the calls meant from others; None takes all.
        """
        name, _, value = text.partition('=')
        for call in self._calls([anchor], times, having):
            given = {k.arg: ast.unparse(k.value) for k in call.keywords}
            if name not in given:
                _, end = self._module.span(call)
                self._module.append(end - 1, text)
                self._did('add_argument', why)
            elif given[name] == value:
                self._had('add_argument', why, f'{text} in {anchor}')
            else:
                self._conflict(f'{name}={given[name]} in {anchor}')

    def _calls(
        self, anchors: Sequence[str], times: int, having: str | None = None
    ) -> list[ast.Call]:
        """The calls that an anchor names, if there are as many as expected."""
        wanted = [Anchor(a) for a in anchors]
        found = [
            n
            for n in ast.walk(self._node)
            if any(a.matches(n) for a in wanted)
            and (having is None or having in _given(n))
        ]
        what = ' or '.join(dict.fromkeys(anchors))
        if having is not None:
            what += f' with {having}'
        if len(found) != times:
            word = 'call' if times == 1 else 'calls'
            self._miss(f'{times} {word} of {what}', lines_found(found))
            return []
        # Python before 3.12 gives no true columns inside an f-string.
        inside = [
            c
            for f in ast.walk(self._node)
            if isinstance(f, ast.JoinedStr)
            for c in ast.walk(f)
            if c in found
        ]
        if inside:
            self._miss(
                f'every call of {what} outside f-strings',
                f'{lines_found(inside)} inside one',
            )
            return []
        return found

    # ---- the signature

    def add_parameter(self, text: str, *, why: str) -> None:
        """One more parameter, after the last that a position can give."""
        wanted = ast.parse(f'def f({text}): pass').body[0].args
        name = wanted.args[0].arg
        args = self._node.args
        everything = [*args.posonlyargs, *args.args, *args.kwonlyargs]
        if name in [a.arg for a in everything]:
            if _parameter(args, name) == _parameter(wanted, name):
                self._had('add_parameter', why, f'the parameter {name}')
            else:
                self._conflict(f'another parameter {name}')
            return
        module = self._module
        opening = self._opening()
        close = module.closing[opening]
        star = self._first_star(opening, close)
        if star is None:
            module.append(close, text)
        else:
            own_line = module.is_first_on_line(star)
            gap = f',\n{module.indent(star)}' if own_line else ', '
            module.put(star, star, text + gap)
        self._did('add_parameter', why)

    def _opening(self) -> int:
        """Offset of the parenthesis that opens the parameters."""
        module = self._module
        i = module.token_index(module.span(self._node)[0])
        while module.tokens[i].string != self._node.name:
            i += 1  # over "async def"
        bracket = module.tokens[i + 1]
        if bracket.string == '[':  # type parameters, Python 3.12
            end = module.closing[bracket.offset]
            bracket = module.tokens[module.token_index(end) + 1]
        return bracket.offset

    def _first_star(self, opening: int, close: int) -> int | None:
        """Offset of the first `*` or `**` that is part of the signature."""
        module, args = self._module, self._node.args
        by_position = [*args.posonlyargs, *args.args, *args.defaults]
        start = max([opening, *(module.span(n)[1] for n in by_position)])
        if not (args.vararg or args.kwonlyargs or args.kwarg):
            return None
        return next(
            t.offset
            for t in module.tokens[module.token_index(start) :]
            if t.offset < close and t.is_operator and t.string in ('*', '**')
        )

    # ---- the docstring

    def add_doc_option(self, text: str, *, why: str) -> None:
        """One more numbered option, after the last `(N) name (` in the docs.

        Args:
            text(str): `name (type): ...`, without number or indentation.
            why(str): the reason.
        """
        doc = self._docstring()
        options = list(re.finditer(r'\n( +)\((\d+)\) (\w+) ?\(', doc))
        if not options:
            self._miss('numbered options in the docstring', '0')
            return
        name = _name_of(text)
        if name in [o[3] for o in options]:
            self._had('add_doc_option', why, f'the documented option {name}')
            return
        indent, number, _ = options[-1].groups()
        blank = re.compile(r'\n[ \t]*(\n|$)').search(doc, options[-1].end())
        if not blank:
            self._miss('a blank line after the options of the docstring', '0')
            return
        option = f'({int(number) + 1}) {text}'
        at = self._module.span(self._node.body[0])[0] + blank.start()
        self._module.put(at, at, f'\n{indent}{reindented(option, indent)}')
        self._did('add_doc_option', why)

    def add_doc_args(self, *texts: str, why: str) -> None:
        """More entries at the end of the docstring's Args section.

        Args:
            texts(str): `name(type): ...`, without indentation.
            why(str): the reason.
        """
        doc = self._docstring()
        section = re.search(r'\n( +)Args:[ \t]*((?:\n\1 +\S.*)+)', doc)
        if not section:
            self._miss('an Args section in the docstring', '0')
            return
        indent = re.match(r'\n( +)', section[2])[1]
        documented = re.findall(rf'\n{indent}(\w+) ?\(', section[2])
        at = self._module.span(self._node.body[0])[0] + section.end()
        for text in texts:
            if _name_of(text) in documented:
                what = f'the documented argument {_name_of(text)}'
                self._had('add_doc_args', why, what)
            else:
                entry = reindented(text, indent)
                self._module.put(at, at, f'\n{indent}{entry}')
                self._did('add_doc_args', why)

    def _docstring(self) -> str:
        """The docstring as it is written, quotes included, or nothing."""
        if ast.get_docstring(self._node, clean=False) is None:
            return ''
        return self._module.code(self._node.body[0])


class MissingFunction:
    """Stands for a function that is not there: told once, then silent."""

    def _ignore(self, *args: object, **kwargs: object) -> None:
        pass

    append_item = insert_before_return = insert_at_start = _ignore
    replace_statements = enclose_statements = guard_statements = _ignore
    swap_call = wrap_call = add_argument = add_parameter = _ignore
    add_doc_option = add_doc_args = _ignore


def _statement(text: str) -> ast.stmt:
    [statement] = ast.parse(text).body
    return statement


def _expression(text: str) -> ast.Call:
    return ast.parse(text, mode='eval').body


def _given(call: ast.Call) -> list[str]:
    """A call's positional arguments and the names of its keywords."""
    keywords = [k.arg for k in call.keywords if k.arg]
    return [*(ast.unparse(a) for a in call.args), *keywords]


def _parameter(args: ast.arguments, name: str) -> tuple[str, str | None]:
    """A parameter with its annotation, and its default."""
    by_position = [*args.posonlyargs, *args.args]
    missing = [None] * (len(by_position) - len(args.defaults))
    defaults = [*missing, *args.defaults, *args.kw_defaults]
    parameters = [*by_position, *args.kwonlyargs]
    for parameter, default in zip(parameters, defaults, strict=True):
        if parameter.arg == name:
            text = default and ast.unparse(default)
            return ast.unparse(parameter), text
    raise LookupError(name)


def _name_of(text: str) -> str:
    return re.match(r'\w+', text)[0]


def _with_callee(text: str, callee: str) -> str:
    return text.replace('{callee}', callee)
