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

"""The benchmarks compare fairly, believe nothing unverified, and tidy up."""

import argparse
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import paddle
from bench import common, load, load_jobs, report, resume, resume_jobs
from bench.common import BenchError, Sample, VerificationError
from parameterized import parameterized

# The package that the tests run on, whatever tree it is from.
PADDLE_PYTHON = str(Path(paddle.__file__).absolute().parents[1])

TINY_LOADS = (
    '--quick',
    '--sizes=8M,16K',
    '--total=8M',
    '--small-total=64K',
    '--workers=4',
)


def wrong_parallel_load(path, num_workers, **options):
    """Lets one bit of the last tensor tip over, in parallel loads alone."""
    loaded = paddle.load(path, num_workers=1, **options)
    if num_workers > 1:
        last = list(loaded)[-1]
        words = loaded[last].view(np.uint32).copy()
        words[-1, -1] ^= 1
        loaded[last] = words.view(np.float32)
    return loaded


def restore_nothing(state_dict, path, **options):
    """Leaves the destination as it was."""


def restore_first(state_dict, path, **options):
    """Leaves what an earlier call of the same process restored."""
    if not restore_first.has_restored:
        paddle.distributed.load_state_dict(state_dict, path)
    restore_first.has_restored = True


restore_first.has_restored = False


def always_true(checkpoint, state_dict):
    """Decides without a look."""
    return True


def always_false(checkpoint, state_dict):
    """Refuses without a look."""
    return False


def no_shapes(path):
    """Finds nothing."""
    return {}, 0


class TestRounds(unittest.TestCase):
    def setUp(self):
        self.enterContext(contextlib.redirect_stderr(io.StringIO()))

    def test_ways_take_turns_and_warmups_do_not_count(self):
        order = []

        def way(name):
            order.append(name)
            return Sample(len(order), 1)

        samples = common.run_rounds(
            {name: (lambda name=name: way(name)) for name in 'ab'},
            2,
            'x',
            warmups=1,
        )
        self.assertEqual(''.join(order), 'ababab')
        self.assertEqual(
            {
                name: [sample.seconds for sample in group]
                for name, group in samples.items()
            },
            {'a': [3, 5], 'b': [4, 6]},
        )

    def test_memory_is_settled_before_each_call(self):
        order = []

        def way():
            order.append('call')
            return Sample(1.0, 1)

        with mock.patch.object(common, 'settle_memory', order.append):
            common.run_rounds({'a': way}, 2, 'x', settled_bytes=5)
        self.assertEqual(order, [5, 'call', 5, 'call'])

    def test_no_more_is_settled_than_can_be_spared(self):
        with (
            mock.patch.object(common, 'available_memory', lambda: 1 << 20),
            mock.patch('mmap.mmap', wraps=common.mmap.mmap) as mapped,
        ):
            common.settle_memory(1 << 40)
        self.assertEqual(mapped.call_args.args, (-1, 1 << 19))

    def test_summary_is_of_medians(self):
        rows = common.summarise(
            {
                'serial': [Sample(s, 10**9) for s in (9.0, 4.0, 2.0)],
                'ours': [
                    Sample(s, 10**9, int(peak * 1e9))
                    for s, peak in ((1.0, 1.5), (0.5, 1.25), (8.0, 7.0))
                ],
                'memcpy': [Sample(0.5, 10**9)] * 3,
            },
            baseline='serial',
            limit='memcpy',
            payload_bytes=10**9,
            size=1,
        )
        self.assertEqual(
            rows[1],
            {
                'size': 1,
                'way': 'ours',
                'seconds': 1.0,
                'seconds_min': 0.5,
                'seconds_max': 8.0,
                'speedup': 4.0,
                'of_limit': 2.0,
                'gb_per_s': 1.0,
                'peak_bytes': 1.5e9,
                'peak_ratio': 1.5,
                'verified_loads': 3,
            },
        )
        self.assertIsNone(rows[0]['peak_ratio'])

    def test_what_is_not_verified_in_full_is_no_result(self):
        samples = {'serial': [Sample(1.0, 10), Sample(1.0, 9)]}
        with self.assertRaisesRegex(VerificationError, 'only 9 were'):
            common.summarise(samples, baseline='serial', payload_bytes=10)


class TestWords(unittest.TestCase):
    COLUMNS = (
        report.Column('way', 'way'),
        report.Column('ms', 'seconds', report.milliseconds),
        report.Column('ratio', 'speedup', report.times),
    )
    ROWS = (
        {'way': 'serial', 'seconds': 1.25, 'speedup': 1.0},
        {'way': 'a', 'seconds': 0.0025, 'speedup': None},
    )

    def test_plain_table(self):
        self.assertEqual(
            report.plain_table(self.COLUMNS, self.ROWS).splitlines(),
            [
                'way       ms  ratio',
                'serial  1250  1.00x',
                'a        2.5',
            ],
        )

    def test_markdown_table(self):
        self.assertEqual(
            report.markdown_table(self.COLUMNS, self.ROWS).splitlines(),
            [
                '| way | ms | ratio |',
                '|---|---|---|',
                '| serial | 1250 | 1.00x |',
                '| a | 2.5 |  |',
            ],
        )

    @parameterized.expand(
        [
            (1023, '1023 B'),
            (100 << 10, '100 KiB'),
            (2 << 20, '2 MiB'),
            (1010 << 20, '1010 MiB'),
            (5 << 29, '2.5 GiB'),
        ]
    )
    def test_format_bytes(self, count, text):
        self.assertEqual(common.format_bytes(count), text)

    @parameterized.expand(
        [('17', 17), ('100K', 100 << 10), ('16m', 16 << 20), ('2G', 2 << 30)]
    )
    def test_parse_bytes(self, text, count):
        self.assertEqual(report.parse_bytes(text), count)

    @parameterized.expand(['', 'M', '0', '-1', '1.5G', '1MM', '1KM', '4T'])
    def test_sizes_that_are_none(self, text):
        with self.assertRaisesRegex(argparse.ArgumentTypeError, 'such as'):
            report.parse_bytes(text)


class TestPlan(unittest.TestCase):
    def listed(self, protocol, full):
        return [
            (entry.result, entry.regime, entry.workers)
            for entry in load.comparisons(protocol, (2, 4, 8), full)
        ]

    def test_default(self):
        self.assertEqual(
            self.listed(4, False),
            [
                ('numpy', 'warm', (2, 4, 8)),
                ('numpy', 'fresh', (4,)),
                ('Tensor', 'warm', (4,)),
                ('Tensor', 'fresh', (4,)),
            ],
        )
        self.assertEqual(self.listed(5, False), [('numpy', 'fresh', (4,))])

    def test_full(self):
        for protocol in 4, 5:
            self.assertEqual(
                self.listed(protocol, True),
                [
                    (result, regime, (2, 4, 8))
                    for result in ('numpy', 'Tensor')
                    for regime in ('warm', 'fresh')
                ],
            )


class TestFiles(unittest.TestCase):
    def setUp(self):
        self.parent = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.errors = io.StringIO()
        self.enterContext(contextlib.redirect_stderr(self.errors))

    def test_they_go_however_it_ends(self):
        for error in (KeyboardInterrupt, SystemExit, BenchError):
            with (
                self.subTest(error),
                contextlib.suppress(BaseException),
                common.scratch_directory(1, self.parent) as folder,
            ):
                (folder / 'file').touch()
                raise error
            self.assertEqual(list(self.parent.iterdir()), [])

    def test_a_second_interrupt_waits_for_the_removal(self):
        real_rmtree = common.shutil.rmtree

        def interrupted_rmtree(folder):
            os.kill(os.getpid(), signal.SIGINT)
            real_rmtree(folder)

        with (
            mock.patch('shutil.rmtree', interrupted_rmtree),
            common.scratch_directory(1, self.parent) as folder,
        ):
            (folder / 'file').touch()
        self.assertEqual(list(self.parent.iterdir()), [])

    def test_no_room_in_memory_warns(self):
        rooms = {common.MEMORY_DIRECTORY: 10, self.parent: 1000}
        with (
            mock.patch(
                'shutil.disk_usage', lambda path: mock.Mock(free=rooms[path])
            ),
            mock.patch('tempfile.gettempdir', lambda: str(self.parent)),
        ):
            with common.scratch_directory(1000, None) as folder:
                self.assertEqual(folder.parent, self.parent)
            self.assertIn('WARNING', self.errors.getvalue())
            with (
                self.assertRaisesRegex(BenchError, 'found 1000 B'),
                common.scratch_directory(1001, None),
            ):
                pass

    def test_no_paddle_says_what_to_do(self):
        with self.assertRaisesRegex(BenchError, 'paddle_fork.py build'):
            common.use_paddle(self.parent)

    @parameterized.expand([('SIGINT', 130), ('SIGTERM', 143)])
    def test_signals_of_a_run(self, name, code):
        process = subprocess.Popen(
            [
                sys.executable,
                load.__file__,
                *TINY_LOADS,
                *('--directory', self.parent, '--rounds', '1000'),
                *('--paddle-python', PADDLE_PYTHON),
            ],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with process:
            try:
                for line in process.stderr:
                    if 'round 1 of' in line:
                        break
                self.assertEqual(len(list(self.parent.iterdir())), 1)
                # To all its processes, as a terminal does it.
                os.killpg(process.pid, getattr(signal, name))
                rest = process.stderr.read()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        self.assertEqual(process.returncode, code, rest)
        self.assertEqual(list(self.parent.iterdir()), [])


class TestWorker(unittest.TestCase):
    def test_it_keeps_its_state_and_a_fresh_one_has_none(self):
        with common.Worker() as worker:
            first, second = worker(os.getpid), worker(os.getpid)
        self.assertEqual(first, second)
        self.assertNotEqual(common.call_fresh(os.getpid), first)

    def test_errors_come_over(self):
        with common.Worker() as worker:
            with self.assertRaisesRegex(BenchError, 'ValueError'):
                worker(int, 'x')
            with self.assertRaisesRegex(BenchError, 'exit code 3'):
                worker(os._exit, 3)


class BenchCase(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.output, self.errors = io.StringIO(), io.StringIO()
        self.enterContext(contextlib.redirect_stdout(self.output))
        self.enterContext(contextlib.redirect_stderr(self.errors))
        self.enterContext(mock.patch.dict(os.environ))
        self.enterContext(mock.patch.object(sys, 'path', sys.path[:]))

    def run_main(self, module, *options):
        """Runs a benchmark in this process: the exit code."""
        scratch = self.folder / 'scratch'
        scratch.mkdir()
        code = module.main(
            [
                *options,
                *('--directory', str(scratch)),
                *('--paddle-python', PADDLE_PYTHON),
                *('--json', str(self.folder / 'figures.json')),
                *('--markdown', str(self.folder / 'figures.md')),
            ]
        )
        self.assertEqual(list(scratch.iterdir()), [])
        return code

    def figures(self):
        return json.loads((self.folder / 'figures.json').read_text())


class TestLoads(BenchCase):
    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.object(load_jobs, 'PLANNED_TENSORS', 20))

    def test_quick_run(self):
        code = self.run_main(load, *TINY_LOADS)
        self.assertEqual(code, 0, self.errors.getvalue())
        figures = self.figures()
        self.assertEqual(figures['machine']['paddle'], paddle.__version__)
        # Per size: four comparisons of protocol 4 and one of protocol 5, with
        # three loaders each; planning: two protocols and two regimes.
        self.assertEqual(len(figures['loads']), 2 * 5 * 3)
        self.assertEqual(len(figures['plans']), 2 * 2)
        for row in figures['loads'] + figures['plans']:
            self.assertEqual(row['verified_loads'], 1, row)
        printed = self.output.getvalue()
        self.assertIn('4 workers', printed)
        self.assertIn('| 4 workers |', (self.folder / 'figures.md').read_text())

    def test_a_wrong_bit_fails(self):
        with mock.patch.object(load_jobs, 'paddle_load', wrong_parallel_load):
            code = self.run_main(load, *TINY_LOADS)
        self.assertEqual(code, 1)
        self.assertIn('VerificationError', self.errors.getvalue())
        self.assertEqual(self.output.getvalue(), '')


class TestVerify(unittest.TestCase):
    def setUp(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.checkpoint = load_jobs.Checkpoint(
            folder / 'file', folder / 'pool', 8192, 3
        )
        with contextlib.redirect_stderr(io.StringIO()):
            load.write_pool(self.checkpoint)
        self.right = {
            key: value.copy()
            for key, value in self.checkpoint.expected().items()
        }

    def verify(self, loaded, kind=np.ndarray):
        return load_jobs.verify(loaded, self.checkpoint, kind)

    def test_right(self):
        self.assertEqual(self.verify(self.right), 3 * 8192)
        tensors = {k: paddle.to_tensor(v) for k, v in self.right.items()}
        tensors[load_jobs.NAME_TABLE_KEY] = {}
        self.assertEqual(self.verify(tensors, paddle.Tensor), 3 * 8192)

    def test_wrong(self):
        first, second, last = self.right
        flipped = self.right[last].view(np.uint8).copy()
        flipped[-1, -1] ^= 0x80
        swapped = {first: self.right[second], second: self.right[first]}
        cases = {
            'bytes differ': {last: flipped.view(np.float32)},
            'its bytes': swapped,
            'received int32': {first: self.right[first].view(np.int32)},
            r'received float32 \(1024, 2\)': {
                first: self.right[first].reshape(1024, 2)
            },
            'received Tensor': {first: paddle.to_tensor(self.right[first])},
            '1 keys': {'more': self.right[first]},
        }
        for message, change in cases.items():
            with (
                self.subTest(message),
                self.assertRaisesRegex(VerificationError, message),
            ):
                self.verify({**self.right, **change})
        del self.right[second]
        with self.assertRaisesRegex(VerificationError, second):
            self.verify(self.right)


class TestResume(BenchCase):
    def options(self):
        return argparse.Namespace(
            rounds=1,
            keys=3,
            ranks=2,
            tensors=3,
            tensor_size=1 << 20,
            total=2 << 20,
            num_workers=2,
        )

    def test_quick_run(self):
        code = self.run_main(
            resume, '--quick', '--total=8M', '--tensor-size=4M'
        )
        self.assertEqual(code, 0, self.errors.getvalue())
        figures = self.figures()
        lengths = {
            'decisions': 2,
            'sharded decisions': 2,
            'metadata loads': 2,
            'scans': 2,
            'restores': 4,
        }
        for part, ways in lengths.items():
            self.assertEqual(len(figures[part]), 2 * ways)
            for row in figures[part]:
                self.assertEqual(row['verified_loads'], 1, row)
        for row in figures['scans']:
            if row['way'] == 'scan_tensor_shapes':
                self.assertLess(row['bytes_read'], 20 * 400)

    @parameterized.expand(
        [
            ('decide_fast', always_true, 'always_true: expected False'),
            ('decide_fast', always_false, 'always_false: expected True'),
            ('decide_stock', always_true, 'always_true: expected False'),
            ('decide_by_storage', always_true, 'always_true: expected False'),
            ('decide_by_storage', always_false, 'always_false: expected True'),
            ('shapes_by_scan', no_shapes, 'other shapes for 3 keys'),
            ('restore', restore_nothing, 'bytes differ'),
            ('restore', restore_first, 'bytes differ'),
        ]
    )
    def test_wrong_answers_fail(self, name, replacement, message):
        measure = {
            'decide_by_storage': resume.measure_sharded,
            'shapes_by_scan': resume.measure_scans,
            'restore': resume.measure_restores,
        }.get(name, resume.measure_decisions)
        with (
            mock.patch.object(resume_jobs, name, replacement),
            self.assertRaisesRegex(VerificationError, message),
        ):
            measure(self.folder, self.options())


if __name__ == '__main__':
    unittest.main()
