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

"""An invented Paddle tree for the tests of the wiring."""

import tempfile
import unittest
from pathlib import Path

import wiring

MODULE = 'part/module.py'
WHY = 'a test wants it'

# What every tree has: the files by which a Paddle tree is known, and the name
# by which these tests' patches know their own work.
TREE = {
    '__init__.py': '',
    'framework/io.py': '',
    'mark.py': 'ours = True\n',
}


def as_bytes(text):
    return text if isinstance(text, bytes) else text.encode()


def a_patch(edit, **fields):
    """`edit(tree)` as a patch."""

    def invented(tree):
        """invented: a patch for a test"""
        edit(tree)

    record = {
        'kind': 'permanent',
        'checked': '2026-01-31',
        'since': '3.3.0',
        'mark': ('mark.py', 'ours'),
    }
    return wiring.patch(**{**record, **fields})(invented)


class WiringCase(unittest.TestCase):
    """Trees in temporary directories, and what a patch makes of them."""

    maxDiff = None

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = Path(directory.name) / 'checkout'
        self.overlay = Path(directory.name) / 'overlay'
        self.paddle = self.root / 'paddle'
        self.overlay.mkdir()
        self.put(TREE)

    def put(self, files, into=None):
        for name, text in files.items():
            path = (into or self.paddle) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(as_bytes(text))

    def plan(self, *patches, proven=None):
        versions = wiring.Versions(proven or {})
        return wiring.plan(self.root, self.overlay, patches, versions)

    def plan_edit(self, before, edit, part=None):
        """The plan of a patch for one module: an edit, or adding our part."""
        self.put({MODULE: before})
        if part is not None:
            self.put({MODULE: part}, self.overlay)
            return self.plan(a_patch(lambda t: t.add(MODULE, why=WHY)))
        return self.plan(a_patch(lambda tree: edit(tree.file(MODULE))))

    def assert_wired(self, before, edit, after, part=None):
        """A patch gives a text exactly, and nothing the second time."""
        plan = self.plan_edit(before, edit, part)
        self.assertTrue(plan.ok, plan.report())
        self.assertEqual(plan.texts[MODULE].decode(), as_bytes(after).decode())
        self.assert_kept(after, edit, part)

    def assert_kept(self, text, edit, part=None):
        """A patch finds its work done."""
        [outcome] = self.plan_edit(text, edit, part).outcomes
        self.assertIsInstance(outcome, wiring.AlreadyApplied)
        self.assertNotEqual(outcome.edits, ())
        self.assertTrue(all(e.done for e in outcome.edits), outcome.edits)

    def assert_added(self, before, part, after):
        """Our part joins a module exactly so, and not a second time."""
        self.assert_wired(before, None, after, part)

    def assert_missed(self, before, edit, *causes, part=None):
        """A patch fails for exactly these causes, and changes nothing."""
        plan = self.plan_edit(before, edit, part)
        self.assertEqual(plan.texts, {})
        [outcome] = plan.outcomes
        self.assertIsInstance(outcome, wiring.Failed)
        self.assertEqual(
            [str(cause) for cause in outcome.causes],
            [f'{MODULE}: in {cause}' for cause in causes],
        )
