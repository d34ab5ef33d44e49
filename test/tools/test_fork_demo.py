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

"""What the demo prints as equal is equal, and its files go."""

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import paddle
from fork import demo, demo_resume, demo_worker
from fork.console import EXIT_FAILED, EXIT_OK, ForkError
from parameterized import parameterized


def load_report(content, seconds=1.0, opaque=0):
    """What a worker reports of one load."""
    return {
        'seconds': seconds,
        'peak_bytes': 2_000_000_000,
        'base_bytes': 500_000_000,
        'content': content,
        'opaque': opaque,
    }


class TestReport(unittest.TestCase):
    def measured(self, parallel):
        serial = [load_report({'w': 'a', 'b': 'c'}, 3.0) for _ in range(3)]
        return {('numpy', 0): serial, ('numpy', 8): parallel}

    def verdict(self, parallel):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            code = demo.verdict(self.measured(parallel))
        return code, output.getvalue()

    def test_equal(self):
        code, text = self.verdict([load_report({'w': 'a', 'b': 'c'})])
        self.assertEqual(code, EXIT_OK)
        self.assertIn('all 2 values equal', text)

    @parameterized.expand(
        [
            ('changed', {'w': 'a', 'b': 'x'}, 'num_workers=8: b'),
            ('missing', {'w': 'a'}, 'num_workers=8: b'),
            ('added', {'w': 'a', 'b': 'c', 'd': ''}, 'num_workers=8: d'),
        ]
    )
    def test_one_different_run_fails(self, _, content, place):
        good = load_report({'w': 'a', 'b': 'c'})
        code, text = self.verdict([good, load_report(content)])
        self.assertEqual(code, EXIT_FAILED)
        self.assertIn(place, text)

    def test_table_shows_medians(self):
        parallel = [load_report({}, seconds) for seconds in (9.0, 0.5, 1.0)]
        lines = demo.table(self.measured(parallel), 6_000_000_000).splitlines()
        self.assertEqual(
            [line.split() for line in lines[1:3]],
            [
                ['numpy', 'serial', '3.000', '2.00', '1.00x', '2.00'],
                ['numpy', '8', '1.000', '6.00', '3.00x', '2.00'],
            ],
        )

    @parameterized.expand([(1, '1 run each'), (2, '2 runs each')])
    def test_runs_are_counted(self, runs, words):
        worker = mock.Mock(return_value=load_report({}))
        output = io.StringIO()
        with (
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            demo.compare(worker, Path(__file__), 8, runs)
        self.assertIn(f' GB, {words}\n', output.getvalue())


def resume_report(decision='local', equal=True, seconds=2.0):
    """What a rank reports of one restore."""
    return {
        'decision': decision,
        'decision_seconds': seconds / 4,
        'decision_bytes': 1000 * seconds,
        'seconds': seconds,
        'equal': equal,
    }


class TestResume(unittest.TestCase):
    def setUp(self):
        # Ranks that start all the same leave their files here.
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def verdict(self, **wrong):
        good = resume_report()
        ranks = [{'stock': [good], 'fast': [good]} for _ in range(2)]
        ranks[1]['fast'] = [good, resume_report(**wrong)]
        with contextlib.redirect_stdout(io.StringIO()):
            return demo_resume.verdict(ranks)

    def test_one_wrong_restore_fails(self):
        self.assertEqual(self.verdict(), EXIT_OK)
        self.assertEqual(self.verdict(equal=False), EXIT_FAILED)
        self.assertEqual(self.verdict(decision='reshard'), EXIT_FAILED)

    def test_table_shows_medians_of_all_ranks(self):
        ranks = [
            {
                'stock': [resume_report(seconds=s) for s in (9.0, rank)],
                'fast': [resume_report('reshard', seconds=1.0)],
            }
            for rank in (4.0, 6.0)
        ]
        lines = demo_resume.table(ranks, 8).splitlines()
        self.assertEqual(
            [line.split() for line in lines[1:]],
            [
                ['stock', '1', 'local', '1875.0', '7,500', '7.500'],
                ['fast', '8', 'reshard', '250.0', '1,000', '1.000'],
            ],
        )

    @parameterized.expand([(1, '1 run each'), (2, '2 runs each')])
    def test_runs_are_counted(self, runs, words):
        told = {way: [resume_report()] for way in ('stock', 'fast')}
        for rank in range(demo_resume.RANKS):
            (self.folder / f'{rank}.json').write_text(json.dumps(told))
        output = io.StringIO()
        with (
            mock.patch.object(demo_resume, 'launch'),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            demo_resume.run_resume(None, None, self.folder, 8, runs)
        self.assertIn(f'(gloo), {words}\n', output.getvalue())

    def test_a_rank_that_fails_shows_its_reason(self):
        project = mock.Mock()
        project.environ.return_value = {'PYTHONPATH': '/no/such'}
        with (
            mock.patch.object(demo_resume, 'RANKS', 'two'),
            self.assertRaisesRegex(ForkError, '(?s)two.*a rank failed'),
        ):
            demo_resume.launch(project, Path(sys.executable), self.folder, 1, 1)

    def test_ranks_that_hang_are_ended(self):
        project = mock.Mock()
        project.environ.return_value = {}
        with (
            mock.patch.object(demo_resume, 'LIMIT_SECONDS', 0),
            self.assertRaisesRegex(ForkError, 'did not end within 0 s'),
        ):
            demo_resume.launch(project, Path(sys.executable), self.folder, 1, 1)


class TestDigest(unittest.TestCase):
    def test_every_difference_shows(self):
        # Symmetric: both orders of it have the same bytes.
        base = np.array([[0, 1], [1, 2]], 'float32')
        other_bytes = base.copy()
        other_bytes[1, 1] = 3
        values = {
            'base': base,
            'bytes': other_bytes,
            'dtype': base.view('int32'),
            'shape': base.reshape(4, 1),
            'order': np.asfortranarray(base),
            'tensor': paddle.to_tensor(base),
            'zero_d': np.array(1, 'float32'),
            'scalar': np.float32(1),
            'empty': base[:0],
            'number': 1,
            'text': '1',
        }
        content, opaque = demo_worker.digest({'all': [values, base.copy()]})
        self.assertEqual(opaque, 0)
        self.assertEqual(content['/all/1'], content['/all/0/base'])
        self.assertEqual(len(content), len(values) + 1)
        self.assertEqual(len(set(content.values())), len(values))

    def test_objects_of_other_types_are_counted(self):
        content, opaque = demo_worker.digest((object(),))
        self.assertEqual((content, opaque), ({'/0': 'object'}, 1))


class TestFiles(unittest.TestCase):
    def test_the_example_goes_however_it_ends(self):
        for error in (KeyboardInterrupt, SystemExit, ForkError('x')):
            with (
                self.subTest(error),
                contextlib.suppress(BaseException),
                demo.example_directory() as folder,
            ):
                (folder / 'example').touch()
                raise error
            self.assertFalse(folder.exists())

    def test_no_room_is_an_error(self):
        usage = mock.Mock(free=1000)
        with (
            mock.patch('shutil.disk_usage', return_value=usage),
            self.assertRaisesRegex(ForkError, 'but found 1,000'),
            demo.example_directory(),
        ):
            pass

    def test_a_failed_load_shows_its_reason(self):
        project = mock.Mock(root=Path('/no/such'))
        project.environ.return_value = {}
        worker = demo.Worker(project, Path(sys.executable))
        with self.assertRaisesRegex(ForkError, 'fork.demo_worker'):
            worker('load')


if __name__ == '__main__':
    unittest.main()
