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

"""The fork tree on invented wheels: what is linked, written and removed."""

import hashlib
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from fork import link_tree

WHEEL = {
    '__init__.py': b'from . import io\n',
    '__pycache__/__init__.cpython-311.pyc': b'cached',
    'io/__init__.py': b'SIDE = "wheel"\n',
    'io/deep/__init__.py': b'',
    'io/deep/old.py': b'x = 1\n',
    'io/deep/__pycache__/old.cpython-311.pyc': b'cached',
    'libs/core.so': b'\x7fELF',
}


def hashes(folder):
    """Path to hash of every file below a folder, links followed."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for path in sorted(folder.rglob('*'))
        if path.is_file()
    }


class LinkTreeCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.package = self.root / 'site-packages' / 'paddle'
        for name, content in WHEEL.items():
            path = self.package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self.target = self.root / 'build' / 'python'
        self.tree = self.target / 'paddle'

    def build(self, texts, stamp='one'):
        link_tree.build_tree(self.package, texts, self.target, stamp)


class TestBuildTree(LinkTreeCase):
    def test_everything_is_linked_but_the_planned_files(self):
        self.build({'io/deep/old.py': b'x = 2\n'})
        for name in ('__init__.py', 'libs', 'io/__init__.py'):
            with self.subTest(name):
                link = self.tree / name
                self.assertTrue(link.is_symlink())
                self.assertEqual(link.resolve(), self.package / name)
        for name in ('', 'io', 'io/deep', 'io/deep/old.py'):
            with self.subTest(name):
                self.assertFalse((self.tree / name).is_symlink())
        self.assertEqual(
            (self.tree / 'io/deep/old.py').read_bytes(), b'x = 2\n'
        )

    def test_new_files_and_new_directories(self):
        self.build({'io/new.py': b'a', 'fresh/one/two.py': b'b'})
        self.assertEqual((self.tree / 'io/new.py').read_bytes(), b'a')
        self.assertEqual((self.tree / 'fresh/one/two.py').read_bytes(), b'b')
        self.assertTrue((self.tree / 'io/deep').is_symlink())

    def test_byte_code_of_real_directories_is_not_linked(self):
        self.build({'io/deep/old.py': b'x = 2\n'})
        self.assertFalse((self.tree / '__pycache__').exists())
        self.assertFalse((self.tree / 'io/deep/__pycache__').exists())

    def test_the_wheel_keeps_its_bytes(self):
        before = hashes(self.package)
        self.build({'io/deep/old.py': b'x = 2\n', 'io/new.py': b''})
        self.build({'__init__.py': b''}, 'two')
        self.assertEqual(hashes(self.package), before)

    def test_files_of_an_earlier_build_vanish(self):
        self.build({'io/new.py': b'', 'io/deep/old.py': b''})
        (self.tree / 'io' / '__pycache__').mkdir()
        self.build({'libs/extra.py': b''}, 'two')
        self.assertTrue((self.tree / 'io').is_symlink())
        self.assertFalse((self.tree / 'io/new.py').exists())
        self.assertEqual(
            (self.tree / 'io/deep/old.py').read_bytes(), b'x = 1\n'
        )
        self.assertEqual(list(self.target.parent.iterdir()), [self.target])

    def test_a_broken_build_leaves_the_tree_as_it_was(self):
        self.build({'io/new.py': b'good'})
        with self.assertRaises(OSError):
            # A file where a directory is needed.
            self.build({'io/new.py': b'', 'io/new.py/more.py': b''}, 'two')
        self.assertEqual((self.tree / 'io/new.py').read_bytes(), b'good')
        self.assertTrue(link_tree.is_current(self.target, 'one'))
        self.assertEqual(list(self.target.parent.iterdir()), [self.target])

    def test_without_links_everything_is_copied(self):
        with mock.patch.object(
            Path, 'symlink_to', side_effect=OSError('no links')
        ):
            self.build({'io/new.py': b'a'})
        expected = {
            name: digest
            for name, digest in hashes(self.package).items()
            if '__pycache__' not in name
        }
        found = hashes(self.tree)
        self.assertEqual(
            found.pop('io/new.py'), hashlib.sha256(b'a').hexdigest()
        )
        self.assertEqual(found, expected)
        self.assertFalse(
            any(path.is_symlink() for path in self.tree.rglob('*'))
        )


class TestStamp(LinkTreeCase):
    def test_current_only_for_its_own_stamp(self):
        self.assertFalse(link_tree.is_current(self.target, 'one'))
        self.build({})
        self.assertTrue(link_tree.is_current(self.target, 'one'))
        self.assertFalse(link_tree.is_current(self.target, 'two'))

    def test_stamp_follows_names_and_contents(self):
        def stamp():
            return link_tree.stamp_of_files(
                [self.package / 'io'], [self.package / '__init__.py']
            )

        seen = {stamp()}
        changes = (
            lambda: (self.package / 'io/deep/old.py').write_bytes(b'y'),
            lambda: (self.package / 'io/new.py').touch(),
            lambda: (self.package / 'io/new.py').rename(
                self.package / 'io/newer.py'
            ),
            lambda: (self.package / '__init__.py').write_bytes(b''),
        )
        for number, change in enumerate(changes):
            change()
            with self.subTest(number):
                self.assertNotIn(stamp(), seen)
            seen.add(stamp())

    def test_byte_code_does_not_count(self):
        def stamp():
            return link_tree.stamp_of_files([self.package], [])

        before = stamp()
        (self.package / '__pycache__' / 'more.pyc').write_bytes(b'')
        self.assertEqual(stamp(), before)


if __name__ == '__main__':
    unittest.main()
