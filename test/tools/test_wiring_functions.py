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

"""The verbs that work inside functions: before and after, misses, layouts."""

import unittest
from textwrap import dedent

from wiring_case import WHY, WiringCase


class TestAddParameter(WiringCase):
    @staticmethod
    def edit(module):
        module.function('brew').add_parameter('cups: int = 1', why=WHY)

    def test_layouts(self):
        for before, after in [
            ('def brew():', 'def brew(cups: int = 1):'),
            ('def brew(tea):', 'def brew(tea, cups: int = 1):'),
            ('def brew(tea=2*3):', 'def brew(tea=2*3, cups: int = 1):'),
            ('def brew(tea, ):', 'def brew(tea, cups: int = 1, ):'),
            ('def brew(tea,):', 'def brew(tea, cups: int = 1,):'),
            ('def brew(tea, /):', 'def brew(tea, /, cups: int = 1):'),
            ('def brew(*pots):', 'def brew(cups: int = 1, *pots):'),
            ('def brew(tea, *, pot):', 'def brew(tea, cups: int = 1, *, pot):'),
            ('def brew(tea, **pot):', 'def brew(tea, cups: int = 1, **pot):'),
            (
                'def brew(tea=lambda *a, **k: 2 ** 3, *, pot=4*5) -> int:',
                'def brew(tea=lambda *a, **k: 2 ** 3, cups: int = 1, *, '
                'pot=4*5) -> int:',
            ),
            ('async def brew(tea):', 'async def brew(tea, cups: int = 1):'),
            (
                '@pot(1)\ndef brew(tea):',
                '@pot(1)\ndef brew(tea, cups: int = 1):',
            ),
            ('def brew(thé="☕"):', 'def brew(thé="☕", cups: int = 1):'),
            (
                'def brew(\n    tea,  # green\n    # the last\n):',
                'def brew(\n    tea,  # green\n    cups: int = 1,\n'
                '    # the last\n):',
            ),
            (
                'def brew(\n    tea,\n    *,\n    pot,\n):',
                'def brew(\n    tea,\n    cups: int = 1,\n    *,\n    pot,\n):',
            ),
            (
                'def brew(\n    tea  # green\n):',
                'def brew(\n    tea, cups: int = 1  # green\n):',
            ),
        ]:
            with self.subTest(before):
                body = '\n    return 1\n'
                self.assert_wired(before + body, self.edit, after + body)

    def test_line_too_long(self):
        """As Paddle's formatter breaks it: in one line more, or in many."""
        name, ten = 'a' * 50, 'b' * 10
        self.assert_wired(
            f'def brew({name}={ten}):\n    pass\n',
            self.edit,
            f'def brew(\n    {name}={ten}, cups: int = 1\n):\n    pass\n',
        )
        self.assert_wired(
            f'def brew({name}=(1, 2), {ten}={ten}):\n    pass\n',
            self.edit,
            f'def brew(\n    {name}=(1, 2),\n    {ten}={ten},\n'
            f'    cups: int = 1,\n):\n    pass\n',
        )

    def test_two_parameters_in_a_row(self):
        def edit(module):
            self.edit(module)
            module.function('brew').add_parameter('sugar=0', why=WHY)

        for before, after in [
            ('def brew(): 1\n', 'def brew(cups: int = 1, sugar=0): 1\n'),
            (
                'def brew(*, a): 1\n',
                'def brew(cups: int = 1, sugar=0, *, a): 1\n',
            ),
        ]:
            self.assert_wired(before, edit, after)

    def test_another_parameter_of_that_name(self):
        for parameters in (
            'cups=1',
            'tea, cups: int = 2',
            'cups: int',
            '*, cups',
        ):
            with self.subTest(parameters):
                self.assert_missed(
                    f'def brew({parameters}): pass\n',
                    self.edit,
                    'brew: has another parameter cups, '
                    'from another version of this series or edited since',
                )

    def test_number_of_functions(self):
        self.assert_missed(
            'class A:\n    def brew(self): pass\n',
            self.edit,
            'brew: expected 1 top-level function, but found 0',
        )
        self.assert_missed(
            'def brew(): pass\ndef brew(): pass\n',
            self.edit,
            'brew: expected 1 top-level function, but found 2 (lines 1, 2)',
        )


class TestWrapCall(WiringCase):
    @staticmethod
    def edit(module):
        module.function('brew').wrap_call(
            'boil', '_pour(\n    {call},\n    cup,\n)', why=WHY
        )

    def test_lines_of_the_call_move_in(self):
        self.assert_wired(
            'def brew(w):\n    return boil(\n        w  # cold\n    )\n',
            self.edit,
            'def brew(w):\n    return _pour(\n        boil(\n'
            '            w  # cold\n        ),\n        cup,\n    )\n',
        )

    def test_call_in_another_call(self):
        self.assert_wired(
            'def brew(w):\n    return sip(boil(w))\n',
            self.edit,
            'def brew(w):\n    return sip(_pour(\n        boil(w),\n'
            '        cup,\n    ))\n',
        )

    def test_wrapper_with_other_arguments(self):
        self.assert_missed(
            'def brew(w):\n    return _pour(boil(w), mug)\n',
            self.edit,
            'brew: has another call of _pour, from another version of this '
            'series or edited since',
        )

    def test_two_calls(self):
        self.assert_missed(
            'def brew(w):\n    boil(w)\n    boil(w)\n',
            self.edit,
            'brew: expected 1 call of boil, but found 2 (lines 2, 3)',
        )


class TestSwapCall(WiringCase):
    @staticmethod
    def edit(module):
        module.function('brew').swap_call(
            ['kettle.boil(w, hot=True)', 'safe_boil(w, hot=True)'],
            '_boil({callee}, w)',
            why=WHY,
        )

    def test_callee_is_kept(self):
        for callee in 'kettle.boil', 'safe_boil':
            self.assert_wired(
                f'def brew(w):\n    return {callee}(w, hot=True) + 1  # x\n',
                self.edit,
                f'def brew(w):\n    return _boil({callee}, w) + 1  # x\n',
            )

    def test_layout_inside_the_call(self):
        self.assert_wired(
            'def brew(w):\n    s = "é☕"; t = kettle.boil(\n'
            '        w,  # cold\n        hot = True,\n    )\n',
            self.edit,
            'def brew(w):\n    s = "é☕"; t = _boil(kettle.boil, w)\n',
        )

    def test_several_lines(self):
        self.assert_wired(
            'def f():\n    if 1:\n        x = g(1)\n',
            lambda m: m.function('f').swap_call(
                ['g'], 'h(\n    {callee}\n)', why=WHY
            ),
            'def f():\n    if 1:\n        x = h(\n            g\n        )\n',
        )

    def test_other_arguments(self):
        self.assert_missed(
            'def brew(w):\n    return kettle.boil(w, hot=False)\n',
            self.edit,
            'brew: expected 1 call of kettle.boil(w, hot=True) or '
            'safe_boil(w, hot=True) or _boil, but found 0',
        )

    def test_two_calls(self):
        self.assert_missed(
            'def brew(w):\n    kettle.boil(w, hot=True)\n\n'
            '    safe_boil(w, hot=True)\n',
            self.edit,
            'brew: expected 1 call of kettle.boil(w, hot=True) or '
            'safe_boil(w, hot=True) or _boil, but found 2 (lines 2, 4)',
        )

    def test_call_of_ours_with_other_arguments(self):
        self.assert_missed(
            'def brew(w):\n    _boil(kettle.boil, 3)\n',
            self.edit,
            'brew: has another call of _boil, '
            'from another version of this series or edited since',
        )

    def test_call_in_an_f_string(self):
        [outcome] = self.plan_edit(
            'def brew(w):\n    return f"{kettle.boil(w, hot=True)}"\n',
            self.edit,
        ).outcomes
        [cause] = outcome.causes
        self.assertIn('outside f-strings, but found 1', str(cause))


class TestAddArgument(WiringCase):
    @staticmethod
    def edit(module, **which):
        function = module.function('brew')
        function.add_argument('pot.fill', 'cups=cups', why=WHY, **which)

    def test_layouts(self):
        for before, after in [
            ('pot.fill()', 'pot.fill(cups=cups)'),
            ('pot.fill(tea)', 'pot.fill(tea, cups=cups)'),
            ('pot.fill(tea,)', 'pot.fill(tea, cups=cups,)'),
            ('pot.fill(*tea, **kw)', 'pot.fill(*tea, **kw, cups=cups)'),
            ('é = "☕", pot.fill(1)', 'é = "☕", pot.fill(1, cups=cups)'),
            (
                'pot.fill(\n        tea,  # green\n    )',
                'pot.fill(\n        tea,  # green\n        cups=cups,\n    )',
            ),
            (
                'pot.fill(\n        a(\n            b,\n        ),\n    )',
                'pot.fill(\n        a(\n            b,\n        ),\n'
                '        cups=cups,\n    )',
            ),
            (
                'pot.fill(  # why\n        tea)',
                'pot.fill(  # why\n        tea, cups=cups)',
            ),
        ]:
            with self.subTest(before):
                head = 'def brew(tea, cups):\n    '
                self.assert_wired(
                    f'{head}{before}', self.edit, f'{head}{after}'
                )

    def test_line_too_long(self):
        long = 'a' * 45
        self.assert_wired(
            f'def brew(cups):\n    tea = pot.fill({long}, x=1)\n',
            self.edit,
            f'def brew(cups):\n    tea = pot.fill(\n'
            f'        {long}, x=1, cups=cups\n    )\n',
        )
        self.assert_wired(
            f'def brew(cups):\n    tea = pot.fill(\n'
            f'        {long}, f(x, y,), z={{1, 2}}\n    )\n',
            self.edit,
            f'def brew(cups):\n    tea = pot.fill(\n        {long},\n'
            f'        f(x, y,),\n        z={{1, 2}},\n        cups=cups,\n'
            f'    )\n',
        )

    def test_calls_are_told_apart(self):
        before = (
            'def brew(cups):\n    pot.fill(tea)\n    pot.fill(milk)\n'
            '    pot.fill(0, hot=1)\n'
        )
        self.assert_wired(
            before,
            lambda m: self.edit(m, having='milk'),
            before.replace('(milk', '(milk, cups=cups'),
        )
        self.assert_wired(
            before,
            lambda m: self.edit(m, having='hot'),
            before.replace('hot=1', 'hot=1, cups=cups'),
        )
        self.assert_wired(
            before,
            lambda m: self.edit(m, times=3),
            before.replace(')\n', ', cups=cups)\n'),
        )

    def test_number_of_calls(self):
        self.assert_missed(
            'def brew(cups):\n    pan.fill()\n',
            self.edit,
            'brew: expected 1 call of pot.fill, but found 0',
        )
        self.assert_missed(
            'def brew(cups):\n    pot.fill(1)\n    pot.fill(2)\n',
            lambda m: self.edit(m, times=2, having='1'),
            'brew: expected 2 calls of pot.fill with 1, but found 1 (line 2)',
        )
        self.assert_missed(
            'def brew(cups):\n    pot.fill(1)\n    pot.fill(2)\n',
            self.edit,
            'brew: expected 1 call of pot.fill, but found 2 (lines 2, 3)',
        )

    def test_another_value(self):
        self.assert_missed(
            'def brew(cups):\n    pot.fill(cups=3)\n',
            self.edit,
            'brew: has cups=3 in pot.fill, '
            'from another version of this series or edited since',
        )


class TestAppendItem(WiringCase):
    @staticmethod
    def edit(module):
        module.function('menu').append_item('teas', "'oolong'", why=WHY)

    def test_layouts(self):
        for before, after in [
            ('[]', "['oolong']"),
            ("['mint']", "['mint', 'oolong']"),
            ("['mint',]", "['mint', 'oolong',]"),
            (
                "[\n        'mint',  # fresh\n    ]",
                "[\n        'mint',  # fresh\n        'oolong',\n    ]",
            ),
            (
                "[\n        'mint'  # fresh\n    ]",
                "[\n        'mint', 'oolong'  # fresh\n    ]",
            ),
        ]:
            with self.subTest(before):
                head = 'def menu():\n    teas = '
                self.assert_wired(
                    f'{head}{before}\n', self.edit, f'{head}{after}\n'
                )

    def test_after_another(self):
        def edit(module):
            module.append_item('teas', "'oolong'", after="'mint'", why=WHY)

        for before, after in [
            ('["mint", "x"]', '["mint", \'oolong\', "x"]'),
            ('["x", "mint"]', '["x", "mint", \'oolong\']'),
            (
                '[\n    "mint",  # fresh\n    "x",\n]',
                '[\n    "mint",  # fresh\n    \'oolong\',\n    "x",\n]',
            ),
        ]:
            with self.subTest(before):
                self.assert_wired(
                    f'teas = {before}\n', edit, f'teas = {after}\n'
                )
        self.assert_missed(
            'teas = ["x", "mint",\n "mint"]\n',
            edit,
            "<module>: expected 'mint' once in teas, but found 2 (lines 1, 2)",
        )

    def test_same_item_in_other_quotes(self):
        self.assert_kept('def menu():\n    teas = ["oolong"]\n', self.edit)

    def test_number_of_lists(self):
        self.assert_missed(
            'teas = []\ndef menu():\n    teas = ()\n',
            self.edit,
            'menu: expected 1 list assigned to teas, but found 0',
        )
        self.assert_missed(
            'def menu():\n    teas = []\n    teas = []\n',
            self.edit,
            'menu: expected 1 list assigned to teas, but found 2 (lines 2, 3)',
        )


class TestInsertBeforeReturn(WiringCase):
    @staticmethod
    def edit(module):
        module.function('f').insert_before_return('x.y = g(\n    1\n)', why=WHY)

    def test_layouts(self):
        ours = '    x.y = g(\n        1\n    )\n'
        for before, after in [
            ('def f():\n    x = 1\n', '\n    # done\n    return x\n'),
            ('def f():\n', '    # done\n    return 1\n'),
            ('def f():\n    if a:\n        b\n', '\n    return 1'),
            ('def f():\n    é = "☕"  # tea\n', '    return 1\n\n\ny = 2\n'),
        ]:
            with self.subTest(before):
                self.assert_wired(
                    before + after, self.edit, before + ours + after
                )

    def test_no_return_at_the_end(self):
        self.assert_missed(
            'def f():\n    return 1\n    x\n',
            self.edit,
            'f: expected a return as the last statement, '
            'but found another (line 3)',
        )

    def test_return_that_shares_its_line(self):
        self.assert_missed(
            'def f():\n    x; return 1\n',
            self.edit,
            'f: expected the last return on a line of its own, '
            'but found it shared',
        )


class TestInsertAtStart(WiringCase):
    @staticmethod
    def edit(module):
        module.function('f').insert_at_start('x = check(x)', why=WHY)

    def test_layouts(self):
        for before, after in [
            ('def f(x):\n    """Doc."""  # c\n', '    global y\n'),
            ('def f(x):\n    """Doc.\n\n    More ☕.\n    """\n', '    y\n'),
            ('def f(x):\n    "Only a docstring"\n', ''),
            ('@d\ndef f(x):\n', '    # why\n    y = x\n'),
            ('def f(\n    x,\n):\n', '\n    y = x'),
        ]:
            with self.subTest(before):
                blank = '\n' if after.startswith('\n') else ''
                self.assert_wired(
                    before + after,
                    self.edit,
                    f'{before}{blank}    x = check(x)\n{after[len(blank) :]}',
                )

    def test_body_on_the_line_of_def(self):
        self.assert_missed(
            'def f(x): return x\n',
            self.edit,
            'f: expected the first statement on a line of its own, '
            'but found it shared',
        )


class TestReplaceStatements(WiringCase):
    @staticmethod
    def edit(module):
        module.function('f').replace_statements(
            ['a.load', 'put(1)', 'check'], 'ok = ours(\n    x\n)', why=WHY
        )

    def test_one_row(self):
        before = (
            'def f():\n    if y:\n        z\n        m = a.load(1, 2)\n'
            '        put(1)  # c\n\n        ok = check(\n            m\n'
            '        )  # d\n        if ok:\n            pass\n'
        )
        after = (
            'def f():\n    if y:\n        z\n        ok = ours(\n'
            '            x\n        )  # d\n        if ok:\n'
            '            pass\n'
        )
        self.assert_wired(before, self.edit, after)

    def test_number_of_rows(self):
        row = '    a.load()\n    put(1)\n    check()\n'
        what = 'f: expected 1 row of statements that call a.load, put(1), check'
        for body, found in [
            ('    a.load()\n    x\n    put(1)\n    check()\n', '0'),
            ('    a.load()\n    put(2)\n    check()\n', '0'),
            (row + row, '2 (lines 2, 5)'),
            (row + '    ok = ours(x)\n', '1 (line 2)'),
        ]:
            with self.subTest(body):
                self.assert_missed(
                    f'def f():\n{body}', self.edit, f'{what}, but found {found}'
                )


class TestGuardStatements(WiringCase):
    @staticmethod
    def edit(module):
        module.function('f').guard_statements(
            ['m.clear', 'collect'], 'not m.empty()', after='load', why=WHY
        )

    ROW = '    m.clear()\n    collect()\n'
    GUARDED = '    if not m.empty():\n        m.clear()\n        collect()\n'

    def test_first_row_behind_the_call(self):
        for before, after in [
            ('def f():\n    load(1)\n', ''),
            (f'def f():\n{self.ROW}    load()\n    log()\n', self.ROW),
            ('def f():\n    if x:\n        a = load()\n', '    return 1\n'),
        ]:
            with self.subTest(before):
                self.assert_wired(
                    before + self.ROW + after,
                    self.edit,
                    before + self.GUARDED + after,
                )

    def test_other_condition(self):
        row = self.ROW.replace('    ', '        ')
        self.assert_wired(
            f'def f():\n    load()\n    if m:\n{row}',
            self.edit,
            'def f():\n    load()\n    if m:\n'
            + self.GUARDED.replace('    ', '        ').replace(
                '                ', '            '
            ),
        )

    def test_what_is_not_there(self):
        row = '1 row of statements that call m.clear, collect'
        for body, what in [
            (self.ROW, 'f: expected 1 call of load, but found 0'),
            (
                f'    load()\n    load()\n{self.ROW}',
                'f: expected 1 call of load, but found 2 (lines 2, 3)',
            ),
            (f'{self.ROW}    load()\n', f'f: expected {row}, but found 0'),
        ]:
            with self.subTest(body):
                self.assert_missed(f'def f():\n{body}', self.edit, what)


class TestEncloseStatements(WiringCase):
    @staticmethod
    def edit(module):
        module.function('f').enclose_statements(
            ['a.load', 'len(m)'], 'told(\n    x\n)', why=WHY
        )

    ROW = '    m = a.load(1, 2)\n    assert len(m) == 1, "☕"\n'

    def test_layouts(self):
        head = '    with told(\n        x\n    ):\n'
        for before, row, after in [
            ('def f():\n', self.ROW, ''),
            ('def f():\n    # c\n', self.ROW, '    # d\n    return m\n'),
            ('def f():\n', '    a.load()\n    assert len(m)  # d\n', ''),
            (
                'def f():\n    y\n',
                '    m = a.load(\n        1,\n    )\n\n    # c\n'
                '    assert len(m)\n',
                '\n    with told(y):\n        z\n',
            ),
        ]:
            with self.subTest(row):
                deeper = ''.join(
                    f'    {line}' if line.strip() else line
                    for line in row.splitlines(keepends=True)
                )
                self.assert_wired(
                    before + row + after,
                    self.edit,
                    before + head + deeper + after,
                )

    def test_deeper_in_the_function(self):
        self.assert_wired(
            'def f():\n    if y:\n        a.load()\n        assert len(m)',
            self.edit,
            'def f():\n    if y:\n        with told(\n            x\n'
            '        ):\n            a.load()\n            assert len(m)',
        )

    def test_row_in_another_with(self):
        body = self.ROW.replace('    ', '        ')
        for head in 'with lock:', 'with lock():':
            self.assert_wired(
                f'def f():\n    {head}\n{body}',
                self.edit,
                f'def f():\n    {head}\n        with told(\n'
                f'            x\n        ):\n'
                + self.ROW.replace('    ', ' ' * 12),
            )

    def test_with_of_ours_that_is_another(self):
        deeper = self.ROW.replace('    ', '        ')
        for body in (
            f'    with told(y):\n{deeper}',
            f'    with told(x) as z:\n{deeper}',
            f'    with told(x), z:\n{deeper}',
            f'    with told(x):\n{deeper}        z\n',
        ):
            with self.subTest(body):
                self.assert_missed(
                    f'def f():\n{body}',
                    self.edit,
                    'f: has another with told, '
                    'from another version of this series or edited since',
                )

    def test_number_of_rows(self):
        what = 'f: expected 1 row of statements that call a.load, len(m)'
        for body, found in [
            ('    a.load()\n    x\n    assert len(m)\n', '0'),
            ('    a.load()\n    assert len(n)\n', '0'),
            ('    a.load()\n    assert len(m) and x\n', '0'),
            (self.ROW + self.ROW, '2 (lines 2, 4)'),
        ]:
            with self.subTest(body):
                self.assert_missed(
                    f'def f():\n{body}', self.edit, f'{what}, but found {found}'
                )

    def test_what_cannot_move_in(self):
        shared = 'the row on lines of its own, but found them shared'
        for body, what in [
            ('x; a.load()\n    assert len(m)', shared),
            ('a.load()\n    assert len(m); x', shared),
            (
                'a.load(""" \n """)\n    assert len(m)',
                'no string of several lines in the row, but found one',
            ),
        ]:
            with self.subTest(body):
                self.assert_missed(
                    f'def f():\n    {body}\n', self.edit, f'f: expected {what}'
                )


class TestDocstrings(WiringCase):
    DOC = dedent('''\
        def brew(tea):
            r"""
            Make tea: ☕.

            Args:
                tea(str): Which one. These kinds are there:
                    (1) mint (cold): with ice
                    in it.
                    (2) fennel(hot): without.

            Returns:
                int: cups
            """
            return 1
        ''')

    def test_option(self):
        def edit(module):
            module.function('brew').add_doc_option(
                'sage (hot): fine\nafter rain.', why=WHY
            )

        last = '            (2) fennel(hot): without.\n'
        self.assert_wired(
            self.DOC,
            edit,
            self.DOC.replace(
                last,
                f'{last}            (3) sage (hot): fine\n'
                f'            after rain.\n',
            ),
        )
        self.assert_missed(
            'def brew():\n    """Args:\n        x(int): y\n    """\n',
            edit,
            'brew: expected numbered options in the docstring, but found 0',
        )
        self.assert_missed(
            'def brew():\n    """Args:\n        (1) x (int): y"""\n',
            edit,
            'brew: expected a blank line after the options of the docstring, '
            'but found 0',
        )

    def test_args(self):
        def edit(module):
            module.function('brew').add_doc_args(
                'cups(int): How many.', 'sugar(bool): Or\n    not.', why=WHY
            )

        last = '            (2) fennel(hot): without.\n'
        self.assert_wired(
            self.DOC,
            edit,
            self.DOC.replace(
                last,
                f'{last}        cups(int): How many.\n'
                f'        sugar(bool): Or\n            not.\n',
            ),
        )
        for doc in 'def brew():\n    """Tea."""\n', 'def brew():\n    tea\n':
            self.assert_missed(
                doc,
                edit,
                'brew: expected an Args section in the docstring, but found 0',
            )


if __name__ == '__main__':
    unittest.main()
