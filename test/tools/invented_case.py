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

"""An invented series, and a small Paddle-like tree that it fits.

What builds on the series (wheels, patches for git) is tested with these, so
that no patch of the real series is anything to these tests.
"""

import contextlib
import os
import tempfile
import unittest
from pathlib import Path
from textwrap import dedent
from unittest import mock

import series
import wiring
from fork.project import Project

HEADER = '# The header of each file.\n'

TREE = {
    'paddle/__init__.py': 'from .framework.io import load\n',
    'paddle/version/__init__.py': "full_version = '9.9.1'\n",
    'paddle/framework/__init__.py': '',
    'paddle/framework/io.py': dedent('''\
        import os


        def load(path):
            return os.stat(path)
        '''),
    'paddle/tea.py': 'cups = 1\n',
}

OVERLAY = {
    'framework/io.py': dedent('''\
        def _seen(stat, path):
            return stat(path)


        def _shared():
            return _seen
        '''),
    'framework/pot.py': HEADER + 'from .io import _shared\n',
}

TESTS = {
    'legacy_test/test_seen.py': HEADER
    + dedent('''\
        import unittest

        from seen_case import check
        from paddle.framework.io import load


        class TestSeen(unittest.TestCase):
            def test_seen(self):
                check(load(__file__))
        '''),
    'legacy_test/seen_case.py': HEADER
    + 'def check(stat):\n    assert stat.st_size\n',
    'flex_checkpoint/test_pot.py': HEADER
    + dedent('''\
        import unittest

        from paddle.framework import pot


        class TestPot(unittest.TestCase):
            def test_pot(self):
                self.assertEqual(pot._shared()(abs, -3), 3)
        '''),
}

_RECORD = {'kind': 'permanent', 'checked': '2026-01-31', 'since': '3.3.0'}


@wiring.patch(
    **_RECORD,
    mark=('framework/io.py', '_seen'),
    tests=('legacy_test/seen_case.py', 'legacy_test/test_seen.py'),
)
def see(tree):
    """io: see what is loaded

    It could not be seen.

    Measured: 1 s.
    """
    io = tree.add('framework/io.py', only=['_seen'], why='to see')
    io.function('load').swap_call(
        ['os.stat(path)'], '_seen({callee}, path)', why='the one place'
    )


@wiring.patch(
    **_RECORD,
    mark=('framework/io.py', '_shared'),
    tests=('flex_checkpoint/test_pot.py',),
)
def pour(tree):
    """pot: pour

    Measured: 2 cups.
    """
    tree.add('framework/io.py', only=['_shared'], why='to share')
    tree.new('framework/pot.py', why='to pour from')


def put(files, folder):
    """Writes texts into files, by path."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class InventedCase(unittest.TestCase):
    """A project with the invented series, in a temporary directory."""

    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.project = Project(self.folder / 'project')
        put(OVERLAY, self.project.overlay)
        put(TESTS, self.project.root / 'test')
        self.enter(mock.patch.object(series, 'PATCHES', [see, pour]))
        self.enter(
            mock.patch.object(
                series, 'versions', return_value=wiring.Versions({})
            )
        )
        self.enter(mock.patch.object(series, 'VERSION', '4.5.6'))
        # Messages of ours and of programs that are run: for failures only.
        self.errors = self.enter(
            contextlib.redirect_stderr((self.folder / 'stderr').open('w+'))
        )
        self.addCleanup(self.errors.close)

    def enter(self, context):
        value = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return value

    def environ(self, **variables):
        """Sets variables of the environment until the test ends."""
        self.enter(mock.patch.dict(os.environ, variables))
