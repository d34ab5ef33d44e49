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

"""Adding our part of a module: definitions, fields, imports, whole files."""

import unittest
from textwrap import dedent

import wiring
from wiring_case import MODULE, WHY, WiringCase, a_patch


class TestDefinitions(WiringCase):
    def test_comments_decorators_and_spacing_come_along(self):
        part = (
            '# Licence.\n"""About our part."""\n\n'
            '# Balances this and that.\n'
            '_LIMIT = 3  # cups\n'
            '_A, _B = _BOTH = 1, 2\n'
            '\n'
            '# Not next to anything.\n'
            '\n\n'
            '# ---- section\n'
            '\n\n'
            '# Of the function: ☕.\n'
            '@cached\n'
            '@other(\n    1\n)\n'
            'def brew():\n    return _LIMIT\n'
            '\n\n'
            'class Pot:\n    cups: int = 1\n\n'
            '    def fill(self):\n        pass'
        )
        ours = part[part.index('# Balances') :]
        for before, gap in [
            ('x = 1\n', '\n\n'),
            ('x = 1', '\n\n\n'),
            ('x = 1\n\n\n\n', ''),
            ('# only a comment: é\n', '\n\n'),
            ('', ''),
        ]:
            with self.subTest(before):
                self.assert_added(before, part, f'{before}{gap}{ours}\n')

    def test_only_what_is_missing(self):
        part = '# One.\nONE = 1\n\n# Two.\nTWO = 2\n\n\ndef f():\n    pass\n'
        self.assert_added(
            'ONE = 1\n\n\ndef f():\n    pass\n',
            part,
            'ONE = 1\n\n\ndef f():\n    pass\n\n\n# Two.\nTWO = 2\n',
        )

    def test_imports_among_definitions(self):
        self.assert_added(
            'import math\n',
            'ONE = 1\nimport os\n# Two.\nTWO = 2\n',
            'import math\nimport os\n\n\nONE = 1\n\n\n# Two.\nTWO = 2\n',
        )

    def test_another_definition(self):
        for theirs, ours, name in [
            ('def f(): 1\n', 'def f(): 2\n', 'f'),
            ('@a\ndef f(): 1\n', 'def f(): 1\n', 'f'),
            ('class F: x = 1\n', 'class F: x = 2\n', 'F'),
            ('F = 1\n', 'class F: x = 2\n', 'F'),
            ('G = F = 1\n', 'F, H = 1, 2\n', 'F, H'),
            ('F: int = 1\n', 'F: int = 2\n', 'F'),
        ]:
            with self.subTest(theirs):
                self.assert_missed(
                    theirs,
                    None,
                    f'{name}: has another {name}, '
                    'from another version of this series or edited since',
                    part=ours,
                )

    def test_statement_that_cannot_be_added(self):
        self.assert_missed(
            'x = 1\n',
            None,
            'line 2 of our part: expected an import, a definition or '
            '"if TYPE_CHECKING:", but found another statement',
            part='y = 1\nprint(y)\n',
        )

    def test_part_is_missing(self):
        self.put({MODULE: ''})
        plan = self.plan(a_patch(lambda t: t.add(MODULE, why=WHY)))
        self.assertIn(
            f'{MODULE}: in <module>: expected our part', plan.report()
        )


class TestOnly(WiringCase):
    """Several patches add to one module, each what it needs."""

    PART = dedent('''\
        from __future__ import annotations

        import os
        import sys
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            class Options(Dict):
                one: int

        # Shared.
        LIMIT = 1


        # Of the first.
        def first():
            return os, LIMIT


        # Of the second.
        def second():
            return _helper(sys)


        def _helper(x):
            return x + LIMIT
        ''')
    BEFORE = dedent('''\
        import math
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            class Options(Dict):
                zero: int
        ''')
    FIRST = dedent('''\
        from __future__ import annotations

        import math
        import os
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            class Options(Dict):
                zero: int


        # Shared.
        LIMIT = 1


        # Of the first.
        def first():
            return os, LIMIT
        ''')
    BOTH = FIRST.replace('import os\n', 'import os\nimport sys\n').replace(
        'zero: int\n', 'zero: int\n        one: int\n'
    ) + dedent('''\


        # Of the second.
        def second():
            return _helper(sys)


        def _helper(x):
            return x + LIMIT
        ''')

    def patches(self, *onlies):
        for number, only in enumerate(onlies):

            def edit(tree, only=only):
                tree.add(MODULE, only=only, why=WHY)

            # Marks as patches have them: what they alone bring.
            patch = a_patch(edit, mark=(MODULE, only[0]))
            patch.__name__ = f'invented_{number}'
            yield patch

    def plan_only(self, *onlies):
        self.put({MODULE: self.BEFORE})
        self.put({MODULE: self.PART}, self.overlay)
        return self.plan(*self.patches(*onlies))

    def test_each_brings_what_it_uses(self):
        plan = self.plan_only(['first'], ['second', 'Options'])
        first, second = plan.outcomes
        self.assertIsInstance(second, wiring.Applied, plan.report())
        self.assertEqual(first.changes[MODULE].after.decode(), self.FIRST)
        self.assertEqual(second.changes[MODULE].after.decode(), self.BOTH)

    def test_second_time(self):
        plan = self.plan_only(['first'], ['second', 'Options'])
        self.put(plan.texts)
        again = self.plan(*self.patches(['first'], ['second', 'Options']))
        for outcome in again.outcomes:
            self.assertIsInstance(
                outcome, wiring.AlreadyApplied, again.report()
            )

    def test_a_name_that_our_part_lacks(self):
        [outcome] = self.plan_only(['third']).outcomes
        self.assertEqual(
            [str(cause) for cause in outcome.causes],
            [f'{MODULE}: in third: expected third in our part, but found none'],
        )

    def test_what_no_patch_takes_is_told(self):
        self.put({MODULE: self.PART}, self.overlay)
        self.assertEqual(
            wiring.check(self.overlay, [*self.patches(['first'])]),
            [
                f'{MODULE}: {name}: no patch brings it into a tree'
                for name in ('Options', 'second', '_helper')
            ],
        )


class TestFields(WiringCase):
    BEFORE = (
        'if TYPE_CHECKING:\n'
        '    from typing import Any\n\n'
        '    class Options(TypedDict):\n'
        '        tea: str  # which\n'
        '        # no more\n\n'
        '    class Rest(TypedDict):\n'
        '        tea: str\n'
        'x = 1\n'
    )
    PART = (
        'if TYPE_CHECKING:\n'
        '    from typing import Any, TypedDict\n\n'
        '    class Options(TypedDict):\n'
        '        cups: int | None\n'
        '        tea: str\n'
        '        hot: bool\n'
    )

    def test_under_type_checking(self):
        self.assert_added(
            self.BEFORE,
            self.PART,
            self.BEFORE.replace('import Any', 'import Any, TypedDict').replace(
                '  # which\n',
                '  # which\n        cups: int | None\n        hot: bool\n',
            ),
        )

    def test_at_the_top(self):
        self.assert_added(
            'class Options(Base):\n    """Doc."""\n\n    tea: str\n\n\nx = 1\n',
            'class Options(Base):\n    cups: int\n',
            'class Options(Base):\n    """Doc."""\n\n    tea: str\n'
            '    cups: int\n\n\nx = 1\n',
        )

    def test_another_field(self):
        self.assert_missed(
            self.BEFORE.replace('tea: str', 'tea: bytes', 1),
            None,
            'class Options: has another field tea, '
            'from another version of this series or edited since',
            part=self.PART,
        )

    def test_number_of_classes(self):
        what = 'if TYPE_CHECKING: expected 1 class Options of the same bases'
        for before, found in [
            (self.BEFORE.replace('Options', 'Choices'), '0'),
            (self.BEFORE.replace('Options(TypedDict)', 'Options'), '0'),
            (self.BEFORE.replace('Rest', 'Options'), '2 (lines 4, 8)'),
        ]:
            with self.subTest(before):
                self.assert_missed(
                    before, None, f'{what}, but found {found}', part=self.PART
                )

    def test_number_of_blocks(self):
        what = '<module>: expected 1 block "if TYPE_CHECKING:"'
        for before, found in [
            ('x = 1\n', '0'),
            (self.BEFORE + self.BEFORE, '2 (lines 1, 11)'),
        ]:
            with self.subTest(before):
                self.assert_missed(
                    before, None, f'{what}, but found {found}', part=self.PART
                )

    def test_class_in_one_line(self):
        self.assert_missed(
            'class Options(Base): tea: str\n',
            None,
            'class Options: expected a body on lines of its own, '
            'but found it in one line',
            part='class Options(Base):\n    cups: int\n',
        )


class TestImports(WiringCase):
    BEFORE = (
        '# Licence.\n\n"""Doc."""\n\n'
        'import math\n'
        'import sys  # noqa\n'
        'from io import BytesIO\n\n'
        'import numpy as np\n\n'
        'import paddle\n\n'
        'from ..far import away\n'
        '# About near.\n'
        'from .near import (\n'
        '    LIMIT,\n'
        '    Pot,\n'
        '    # about brew\n'
        '    brew,  # tea\n'
        ')\n\n'
        'x = 1\n'
    )

    def assert_imported(self, part, old, new):
        self.assertEqual(self.BEFORE.count(old), 1)
        self.assert_added(self.BEFORE, part, self.BEFORE.replace(old, new))

    def test_statements_in_their_place(self):
        for part, old, new in [
            ('import ctypes\n', 'import math', 'import ctypes\nimport math'),
            ('import re, os\n', 'import sys', 'import os\nimport re\nimport sys'),
            ('import time\n', '# noqa\n', '# noqa\nimport time\n'),
            ('from abc import ABC\n', 'from io', 'from abc import ABC\nfrom io'),
            ('from typing import A as B\n', 'BytesIO\n',
             'BytesIO\nfrom typing import A as B\n'),
            ('import numpy.linalg as la\n', 'as np\n',
             'as np\nimport numpy.linalg as la\n'),
            ('from paddle.base import core\n', 'import paddle\n',
             'import paddle\nfrom paddle.base import core\n'),
            ('from .a import b\n', '# About near.\n',
             'from .a import b\n# About near.\n'),
            ('from ...top import t\n', 'from ..far', 'from ...top import t\nfrom ..far'),
            ('from . import own\n', '# About near.\n',
             'from . import own\n# About near.\n'),
            ('from __future__ import annotations\n', 'import math',
             'from __future__ import annotations\n\nimport math'),
        ]:  # fmt: skip
            with self.subTest(part):
                self.assert_imported(part, old, new)

    def test_below_the_comment_that_heads_the_file(self):
        self.assert_added(
            '# Licence.\nimport math\n',
            'import abc\n',
            '# Licence.\nimport abc\nimport math\n',
        )

    def test_new_sections(self):
        self.assert_added(
            'import paddle\n\nx = 1\n',
            'import os\nimport re\n\nimport numpy\n\nfrom .near import brew\n',
            'import os\nimport re\n\nimport numpy\n\nimport paddle\n\n'
            'from .near import brew\n\nx = 1\n',
        )

    def test_names_in_their_place(self):
        for name, old, new in [
            ('ALL', '    LIMIT', '    ALL,\n    LIMIT'),
            ('MORE', '    Pot', '    MORE,\n    Pot'),
            ('Tea', '    # about', '    Tea,\n    # about'),
            ('Q', '    # about', '    Q,\n    # about'),
            ('_a', '    # about', '    _a,\n    # about'),
            ('cup', '# tea\n', '# tea\n    cup,\n'),
        ]:
            with self.subTest(name):
                self.assert_imported(f'from .near import {name}\n', old, new)
        for part, old, new in [
            ('from ..far import home\n', 'away', 'away, home'),
            ('from ..far import along\n', 'away', 'along, away'),
        ]:
            with self.subTest(part):
                self.assert_imported(part, old, new)

    def test_what_is_there_stays(self):
        self.assert_kept(
            self.BEFORE,
            None,
            'import sys\nimport numpy as np\nfrom .near import brew, Pot\n',
        )

    def test_long_statement(self):
        name = 'a' * 70
        self.assert_added(
            'import paddle\n',
            f'from paddle.b import {name}\n',
            f'import paddle\nfrom paddle.b import (\n    {name},\n)\n',
        )

    def test_name_from_elsewhere(self):
        self.assert_missed(
            self.BEFORE,
            None,
            '<module>: expected no other import of brew, but found 1 (line 15)',
            part='from .other import brew\n',
        )

    def test_no_import_to_stand_beside(self):
        self.assert_missed(
            'x = 1\n',
            None,
            '<module>: expected imports to stand beside, but found 0',
            part='import os\n',
        )

    def test_verb(self):
        self.assert_wired(
            'import math\n',
            lambda m: m.add_import('from os import sep', why=WHY),
            'import math\nfrom os import sep\n',
        )


class TestAllAtOnce(WiringCase):
    def test_every_place_is_reported(self):
        before = (
            'import math\n\nif TYPE_CHECKING:\n    import re\n\n'
            '    class Options(Base):\n        tea: str\n'
        )
        part = (
            'import os\n\nif TYPE_CHECKING:\n    import abc\n'
            '    from typing import Any\n\n'
            '    class Options(Base):\n        cups: int\n\n\nX = 1\n'
        )
        after = (
            'import math\nimport os\n\nif TYPE_CHECKING:\n    import abc\n'
            '    import re\n    from typing import Any\n\n'
            '    class Options(Base):\n        tea: str\n'
            '        cups: int\n\n\nX = 1\n'
        )
        [outcome] = self.plan_edit(before, None, part).outcomes
        self.assertEqual(
            [(edit.where, edit.done) for edit in outcome.edits],
            [
                ('<module>', False),
                ('if TYPE_CHECKING', False),
                ('if TYPE_CHECKING', False),
                ('class Options', False),
                ('X', False),
            ],
        )
        self.assert_added(before, part, after)


class TestNew(WiringCase):
    def setUp(self):
        super().setUp()
        self.put({'part/new.py': b'# ours\r\n'}, self.overlay)

    def plan_new(self):
        return self.plan(a_patch(lambda t: t.new('part/new.py', why=WHY)))

    def test_bytes_as_they_are(self):
        plan = self.plan_new()
        self.assertEqual(plan.texts, {'part/new.py': b'# ours\r\n'})
        self.assertEqual([e.done for e in plan.outcomes[0].edits], [False])
        self.put(plan.texts)
        [outcome] = self.plan_new().outcomes
        self.assertIsInstance(outcome, wiring.AlreadyApplied)
        self.assertEqual([e.done for e in outcome.edits], [True])

    def test_another_module(self):
        self.put({'part/new.py': '# theirs\n'})
        self.assertIn(
            'part/new.py: in <module>: has another module of this name, '
            'from another version of this series or edited since',
            self.plan_new().report(),
        )
        (self.paddle / 'mark.py').unlink()
        self.assertIn('which is not from this series', self.plan_new().report())

    def test_no_module(self):
        plan = self.plan(a_patch(lambda t: t.new('part/none.py', why=WHY)))
        self.assertIn(
            'part/none.py: in <module>: expected our module', plan.report()
        )


if __name__ == '__main__':
    unittest.main()
