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

"""Writing a plan and taking it back: all or nothing, exact bytes."""

import errno
import json
import os
import signal
import stat
import unittest
from pathlib import Path
from unittest import mock

import wiring
from wiring_case import WHY, WiringCase, a_patch

A, B, NEW = 'part/a.py', 'part/b.py', 'part/new.py'


def series(tree):
    for name in A, B:
        tree.file(name).append_item('x', '1', why=WHY)
    tree.new(NEW, why=WHY)


class WritingCase(WiringCase):
    def setUp(self):
        super().setUp()
        self.put({A: b'x = []\r\n# \xc3\xa9', B: 'x = []\n'})
        self.put({NEW: '# ours\n'}, self.overlay)
        self.before = self.contents()

    def contents(self):
        """Every file of the tree, the kept originals aside."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob('*')
            if path.is_file() and wiring.STATE_DIRECTORY not in path.parts
        }

    def series_plan(self):
        return self.plan(a_patch(series))

    def assert_untouched(self):
        self.assertEqual(self.contents(), self.before)
        self.assertFalse((self.root / wiring.STATE_DIRECTORY).exists())


class TestWrite(WritingCase):
    def test_what_is_written(self):
        self.assertEqual(self.series_plan().write(), [NEW, A, B])
        self.assertEqual(
            self.contents(),
            {
                **self.before,
                f'paddle/{A}': b'x = [1]\r\n# \xc3\xa9',
                f'paddle/{B}': b'x = [1]\n',
                f'paddle/{NEW}': b'# ours\n',
            },
        )

    def test_new_files_alone(self):
        self.plan(a_patch(lambda t: t.new(NEW, why=WHY))).write()
        state = self.root / wiring.STATE_DIRECTORY
        # Git is told to see nothing of it.
        self.assertEqual((state / '.gitignore').read_text(), '*\n')
        self.assertEqual(wiring.revert(self.root), [NEW])
        self.assert_untouched()

    def test_second_time(self):
        self.series_plan().write()
        after = self.contents()
        again = self.series_plan()
        self.assertIsInstance(again.outcomes[0], wiring.AlreadyApplied)
        self.assertEqual(again.write(), [])
        self.assertEqual(self.contents(), after)

    def test_mode_is_kept(self):
        path = self.paddle / A
        path.chmod(0o754)
        self.series_plan().write()
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o754)

    def test_edited_since_the_plan(self):
        plan = self.series_plan()
        self.put({A: 'x = [2]\n', NEW: 'theirs = 1\n'})
        self.before = self.contents()
        with self.assertRaises(wiring.WriteError) as caught:
            plan.write()
        for name in A, NEW:
            self.assertIn(
                f'{name}: edited since the plan was made',
                str(caught.exception),
            )
        self.assert_untouched()

    def test_disk_that_refuses(self):
        """At every step that touches the disk, in turn."""
        for name in 'write_bytes', 'replace':
            step = 0
            while True:
                step += 1
                with self.subTest(name=name, step=step):
                    patched = self.failing(name, step)
                    with patched as calls:
                        try:
                            self.series_plan().write()
                        except wiring.WriteError as error:
                            self.assertIsInstance(error.__cause__, OSError)
                            self.assert_untouched()
                            continue
                    break
            self.assertGreaterEqual(step, 3, calls)
            wiring.revert(self.root)
            self.assert_untouched()

    @staticmethod
    def failing(name, step):
        """Have one call of a function fail, the first ones and later not."""
        owner = {'write_bytes': Path, 'replace': os}[name]
        real, calls = getattr(owner, name), []

        def function(*args):
            calls.append(args)
            if len(calls) == step:
                raise OSError(errno.ENOSPC, 'no space left')
            return real(*args)

        class Patched:
            def __enter__(self):
                self.patch = mock.patch.object(owner, name, function)
                self.patch.start()
                return calls

            def __exit__(self, *_):
                self.patch.stop()

        return Patched()

    def test_interrupt_rolls_back(self):
        real = os.replace

        def replace(source, target):
            if str(target).endswith('b.py') and not calls:
                calls.append(target)
                raise KeyboardInterrupt
            real(source, target)

        calls = []
        plan = self.series_plan()
        with (
            mock.patch('os.replace', replace),
            self.assertRaises(KeyboardInterrupt),
        ):
            plan.write()
        self.assertTrue(calls)
        self.assert_untouched()

    def test_installed_wheel(self):
        self.put({'METADATA': ''}, self.root / 'paddlepaddle-3.3.1.dist-info')
        with self.assertRaisesRegex(wiring.WriteError, 'installed wheel'):
            self.series_plan().write()


class TestGone(WritingCase):
    """A new file by which a patch knows its own work is deleted."""

    def marked_plan(self):
        self.put({NEW: 'new = 1\n'}, self.overlay)
        return self.plan(a_patch(series, mark=(NEW, 'new')))

    def test_it_is_named_and_the_rest_can_be_taken_back(self):
        self.marked_plan().write()
        (self.paddle / NEW).unlink()
        plan = self.marked_plan()
        self.assertFalse(plan.ok)
        self.assertIn(f'expected paddle/{NEW}, which', plan.report())
        self.assertIn('--revert', plan.report())
        self.assertNotIn('not from this series', plan.report())
        wiring.revert(self.root)
        self.assert_untouched()
        self.assertTrue(self.marked_plan().ok)

    def test_what_can_be_completed_is(self):
        self.series_plan().write()
        (self.paddle / NEW).unlink()
        self.assertEqual(self.series_plan().write(), [NEW])

    def test_other_failures_are_told_as_they_are(self):
        self.marked_plan().write()
        self.put({A: 'y = []\n'})
        self.assertIn('1 list assigned to x', self.marked_plan().report())

    def test_damaged_record(self):
        self.marked_plan().write()
        (self.paddle / NEW).unlink()
        record = self.root / wiring.STATE_DIRECTORY / 'record.json'
        record.write_text('{', encoding='utf-8')
        self.assertIn('not from this series', self.marked_plan().report())


class TestKilled(WritingCase):
    """What a process leaves behind that ends between two steps."""

    def kill(self, function, owner, name, step):
        """Run a function in a child that is killed at a step."""
        child = os.fork()
        if child == 0:
            real, calls = getattr(owner, name), []

            def killing(*args, **kwargs):
                calls.append(args)
                if len(calls) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)

            setattr(owner, name, killing)
            function()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        return os.WIFSIGNALED(status)

    def marked_plan(self):
        def edit(tree):
            tree.file(A).append_item('x', '1', why=WHY)
            tree.add(B, why=WHY)

        self.put({B: 'ours = 1\n'}, self.overlay)
        return self.plan(a_patch(edit, mark=(B, 'ours')))

    def test_apply_at_every_swap(self):
        killed = 0
        while self.kill(
            lambda: self.marked_plan().write(), os, 'replace', killed + 1
        ):
            killed += 1
            if killed == 1:  # before the record
                self.assertEqual(self.contents(), self.before)
                continue
            self.assertEqual(set(self.contents()), set(self.before))
            wiring.revert(self.root)
            self.assert_untouched()
        self.assertEqual(killed, 3)
        wiring.revert(self.root)
        self.assert_untouched()

    def test_half_applied_is_told(self):
        plan = self.marked_plan()
        self.assertTrue(self.kill(plan.write, os, 'replace', 3))
        report = self.marked_plan().report()
        self.assertIn('left 1 of 2 files written; take them back', report)
        self.assertIn('--revert', report)
        self.assertNotIn('not from this series', report)

    def test_revert_at_every_step_of_the_cleanup(self):
        for name in 'unlink', 'rmdir':
            killed = 0
            while True:
                self.series_plan().write()
                if not self.kill(
                    lambda: wiring.revert(self.root), os, name, killed + 1
                ):
                    break
                killed += 1
                self.assert_record_has_its_originals()
                # To be written and taken back, whatever is left of it.
                self.series_plan().write()
                wiring.revert(self.root)
                self.assert_untouched()
            self.assertGreater(killed, 1)
            self.assert_untouched()

    def assert_record_has_its_originals(self):
        state = self.root / wiring.STATE_DIRECTORY
        if (state / 'record.json').exists():
            kept = {path.name for path in (state / 'originals').iterdir()}
            record = json.loads((state / 'record.json').read_text())
            for name, file in record['files'].items():
                self.assertIn(file['original'], {None, *kept}, name)

    def test_original_that_is_gone_but_not_needed(self):
        self.series_plan().write()
        originals = self.root / wiring.STATE_DIRECTORY / 'originals'
        record = originals.with_name('record.json')
        kept = record.read_bytes()
        wiring.revert(self.root)
        originals.mkdir(parents=True)
        record.write_bytes(kept)
        with self.subTest('written again'):
            self.series_plan().write()
            wiring.revert(self.root)
            self.assert_untouched()
        with self.subTest('taken back again'):
            originals.mkdir(parents=True)
            record.write_bytes(kept)
            self.assertCountEqual(wiring.revert(self.root), [A, B, NEW])
            self.assert_untouched()


class TestRevert(WritingCase):
    def test_exact_bytes(self):
        self.series_plan().write()
        self.assertCountEqual(wiring.revert(self.root), [A, B, NEW])
        self.assert_untouched()

    def test_series_that_grew(self):
        self.plan(
            a_patch(lambda t: t.file(A).append_item('x', '1', why=WHY))
        ).write()
        self.plan(
            a_patch(lambda t: t.file(A).append_item('x', '2', why=WHY)),
            a_patch(lambda t: t.file(B).append_item('x', '2', why=WHY)),
        ).write()
        self.assertEqual(
            self.contents()[f'paddle/{A}'], b'x = [1, 2]\r\n# \xc3\xa9'
        )
        wiring.revert(self.root)
        self.assert_untouched()

    def test_edited_since(self):
        self.series_plan().write()
        for name, data in [(A, 'x = [1, 5]\n'), (NEW, '# edited\n')]:
            with self.subTest(name):
                path = self.paddle / name
                written = path.read_bytes()
                path.write_bytes(data.encode())
                before = self.contents()
                with self.assertRaisesRegex(
                    wiring.WriteError, f'{name}: edited since the series'
                ):
                    wiring.revert(self.root)
                self.assertEqual(self.contents(), before)
                path.write_bytes(written)
        wiring.revert(self.root)
        self.assert_untouched()

    def test_series_over_an_edited_file(self):
        self.series_plan().write()
        self.put({A: 'x = [1, 5]\n'})
        plan = self.plan(
            a_patch(lambda t: t.file(A).append_item('x', '2', why=WHY))
        )
        with self.assertRaisesRegex(wiring.WriteError, f'{A}: edited since'):
            plan.write()

    def test_killed_half_way(self):
        """The record is there, some files are not written yet."""
        self.series_plan().write()
        self.put({A: self.before[f'paddle/{A}']})
        (self.paddle / NEW).unlink()
        wiring.revert(self.root)
        self.assert_untouched()

    def test_damaged_original(self):
        self.series_plan().write()
        after = self.contents()
        originals = self.root / wiring.STATE_DIRECTORY / 'originals'
        next(originals.iterdir()).write_bytes(b'damaged')
        with self.assertRaisesRegex(wiring.WriteError, 'original is damaged'):
            wiring.revert(self.root)
        self.assertEqual(self.contents(), after)

    def test_damaged_record(self):
        self.series_plan().write()
        record = self.root / wiring.STATE_DIRECTORY / 'record.json'
        for text in '{', '[]', json.dumps({'files': {A: {'x': 1}}}):
            record.write_text(text, encoding='utf-8')
            with self.assertRaisesRegex(wiring.WriteError, 'record.json'):
                wiring.revert(self.root)

    def test_nothing_was_written(self):
        with self.assertRaisesRegex(wiring.WriteError, 'found none'):
            wiring.revert(self.root)

    def test_disk_that_refuses(self):
        self.series_plan().write()
        after = self.contents()
        with (
            TestWrite.failing('replace', 2),
            self.assertRaisesRegex(wiring.WriteError, 'nothing is reverted'),
        ):
            wiring.revert(self.root)
        self.assertEqual(self.contents(), after)
        wiring.revert(self.root)
        self.assert_untouched()


if __name__ == '__main__':
    unittest.main()
