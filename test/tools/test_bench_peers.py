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

"""The benchmarks of peers and of growth are fair, verified, and tidy up."""

import contextlib
import io
import json
import os
import pickle
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import paddle
from bench import (
    common,
    growth,
    layout,
    load_jobs,
    peer_jobs,
    peers,
    plots,
    published,
    report,
    resume_jobs,
)
from bench.common import BenchError, Sample, VerificationError
from parameterized import parameterized

# The package that the tests run on, whatever tree it is from.
PADDLE_PYTHON = str(Path(paddle.__file__).absolute().parents[1])

# A directory without peers.
NO_PEERS = '--peers=/nonexistent'

TINY_PEERS = (
    '--quick',
    '--sizes=2M',
    '--total=4M',
    '--model=none',
    '--workers=2',
    NO_PEERS,
)

TINY_GROWTH = (
    '--quick',
    '--total=32M',
    '--counts=20',
    '--entries=200',
    NO_PEERS,
)


def load_one_wrong_bit(path, num_workers, **options):
    """Lets one bit of the first tensor tip over."""
    loaded = paddle.load(path, **options)
    key = next(iter(loaded))
    words = np.array(loaded[key]).view(np.uint32)
    words[-1] ^= 1
    value = words.view(np.float32)
    if not options['return_numpy']:
        value = paddle.to_tensor(value)
    return {**loaded, key: value}


def load_wrong_in_parallel(path, num_workers=1, **options):
    """Is right only without workers."""
    if num_workers == 1:
        return paddle.load(path, **options)
    return load_one_wrong_bit(path, num_workers, **options)


def say_yes(checkpoint, state_dict):
    """Decides without a look."""
    return True


class TestLayout(unittest.TestCase):
    SHAPES = {'a': (3, 5), 'b': (), 'c': (1024,)}

    def setUp(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.layout = layout.Layout(
            folder / 'file', folder / 'pool', self.SHAPES
        )
        peers.write_pool(self.layout)

    def test_every_tensor_is_made_of_its_own_words(self):
        pool = np.fromfile(self.layout.pool, np.float32)
        expected = self.layout.expected()
        self.assertEqual(
            {key: value.shape for key, value in expected.items()}, self.SHAPES
        )
        for number, value in enumerate(expected.values()):
            start = 2 * number
            self.assertEqual(
                value.tobytes(), pool[start : start + value.size].tobytes()
            )
        self.assertEqual(self.layout.payload_bytes, 4 * (15 + 1 + 1024))
        self.assertEqual(self.layout.pool_bytes, pool.nbytes)

    def test_arrays_are_compared(self):
        right = {k: v.copy() for k, v in self.layout.expected().items()}
        self.assertEqual(
            layout.verify_arrays(right, self.layout), self.layout.payload_bytes
        )
        flipped = right['c'].view(np.uint8).copy()
        flipped[-1] ^= 0x80
        for message, change in {
            'its bytes differ': {'c': flipped.view(np.float32)},
            'received int32': {'c': right['c'].view(np.int32)},
            r'received float32 \(5, 3\)': {'a': right['a'].reshape(5, 3)},
            'e.g. d': {'d': right['a']},
        }.items():
            with (
                self.subTest(message),
                self.assertRaisesRegex(VerificationError, message),
            ):
                layout.verify_arrays({**right, **change}, self.layout)


class TestPublished(unittest.TestCase):
    def setUp(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.path = folder / 'file'

    def write(self, value, protocol):
        self.path.write_bytes(pickle.dumps(value, protocol))
        return self.enterContext(open(self.path, 'rb'))

    @parameterized.expand(
        [
            (design, protocol)
            for design in (published.DeferredFile, published.FillingFile)
            for protocol in (4, 5)
        ]
    )
    def test_they_load_what_was_saved(self, design, protocol):
        words = np.random.default_rng(20264).integers(
            0, 1 << 64, 1 << 19, np.uint64
        )
        f = self.write(
            {'large': words, 'small': words[:9], 'middle': words[:99999]},
            protocol,
        )
        with mock.patch.object(published, 'PIECE_BYTES', 1 << 20):
            loaded = published.load_with(design, f, 3)
        np.testing.assert_array_equal(loaded['large'], words)
        np.testing.assert_array_equal(loaded['small'], words[:9])
        np.testing.assert_array_equal(loaded['middle'], words[:99999])

    def test_nothing_to_do_is_no_measurement(self):
        f = self.write({'small': np.zeros(9)}, 4)
        with self.assertRaisesRegex(BenchError, 'found none'):
            published.load_with(published.DeferredFile, f, 3)

    def test_a_payload_is_cut_in_pieces_in_place(self):
        data = memoryview(bytearray(10))
        pieces = list(published.cut(100, data, 4))
        self.assertEqual(
            [(offset, len(view)) for offset, view in pieces],
            [(100, 4), (104, 4), (108, 2)],
        )
        pieces[1][1][:] = b'wxyz'
        self.assertEqual(bytes(data[4:8]), b'wxyz')


class TestWays(unittest.TestCase):
    def test_a_missing_peer_takes_its_ways_along(self):
        ways = {
            **peers.paddle_ways('Tensor', (1, 2)),
            **peers.peer_ways('Tensor', 2),
        }
        left = peers.available(ways, {'torch': 'not there'})
        self.assertEqual(
            sorted(ways.keys() - left.keys()),
            [
                'safetensors mmap',
                'safetensors pread',
                'torch.load',
                'torch.load mmap',
            ],
        )
        left = peers.available(ways, {'safetensors pread': 'an old one'})
        self.assertEqual(ways.keys() - left.keys(), {'safetensors pread'})

    def test_mapped_loads_are_told_with_and_without_touching(self):
        group = [
            Sample(
                3.0,
                10,
                30,
                {'seconds': 1.0, 'peak_bytes': 10, 'cache': 'warm'},
            )
        ]
        plain = [Sample(2.0, 10, 20, {'cache': 'warm'})]
        samples = {'mapped': group, 'plain': plain}
        self.assertEqual(
            peers.with_untouched(samples, True),
            {
                'mapped': [Sample(1.0, 10, 10, {'cache': 'warm'})],
                'mapped + touch': [Sample(3.0, 10, 30, {'cache': 'warm'})],
                'plain': plain,
            },
        )
        self.assertEqual(
            list(peers.with_untouched(samples, False)),
            ['mapped + touch', 'plain'],
        )

    def test_a_row_is_as_cold_as_its_least_cold_round(self):
        samples = [
            Sample(1.0, 1, None, {'cache': cache})
            for cache in ('partly cold', 'cold', 'cold, unchecked')
        ]
        for group, expected in (
            (samples, 'partly cold'),
            (samples[1:], 'cold, unchecked'),
            (samples[1:2], 'cold'),
        ):
            told = peers.with_untouched({'way': group}, False)['way']
            self.assertEqual(
                {sample.notes['cache'] for sample in told}, {expected}
            )

    def test_every_page_is_touched(self):
        page = peer_jobs.PAGE_BYTES
        for size, pages in ((0, 0), (1, 1), (page, 1), (3 * page + 4, 4)):
            array = np.zeros(size, np.uint8)
            self.assertEqual(peer_jobs.touch_pages(array), pages)

    def test_decades(self):
        self.assertEqual(growth.decades(10, 1000, 10), [10, 100, 1000])
        self.assertEqual(growth.decades(10, 500, 10), [10, 100, 500])
        self.assertEqual(growth.decades(10, 5, 10), [5])

    def test_what_does_not_fit_in_memory_is_left_out(self):
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            self.assertEqual(growth.affordable([1, 2, 3], 9, 4), [1, 2])
        self.assertIn('3 B are left out', errors.getvalue())
        self.assertEqual(growth.affordable([3], None, 4), [3])

    def test_what_takes_long_gets_fewer_rounds(self):
        self.assertEqual(growth.rounds_for(True, 9), growth.LARGE_ROUNDS)
        self.assertEqual(growth.rounds_for(True, 1), 1)
        self.assertEqual(growth.rounds_for(False, 9), 9)


class TestEvict(unittest.TestCase):
    def test_a_file_on_a_disk_is_cold_after_it(self):
        path = Path(self.enterContext(tempfile.TemporaryDirectory()), 'file')
        path.write_bytes(bytes(1 << 20))
        if report.file_system(path) not in ('ext4', 'xfs', 'btrfs'):
            self.skipTest('no disk here that is known to forget')
        path.read_bytes()
        fd = os.open(path, os.O_RDONLY)
        self.addCleanup(os.close, fd)
        if peer_jobs._is_cached(fd, 1 << 19) is None:
            self.skipTest('this system does not tell what it holds')
        self.assertIs(peer_jobs._is_cached(fd, 1 << 19), True)
        self.assertIs(peer_jobs.evict(path), True)
        self.assertIs(peer_jobs._is_cached(fd, 1 << 19), False)

    @parameterized.expand(
        [(True, 'cold'), (False, 'partly cold'), (None, 'cold, unchecked')]
    )
    def test_a_row_says_how_cold_its_file_was(self, answer, text):
        with mock.patch.object(peer_jobs, 'evict', lambda path: answer):
            self.assertEqual(peers.state_of_cache(Path('x'), True), text)
        self.assertEqual(peers.state_of_cache(Path('x'), False), 'warm')


class TestPlots(unittest.TestCase):
    def row(self, **changes):
        return {
            'file': 'f',
            'way': 'paddle.load',
            'result': 'Tensor',
            'protocol': 4,
            'cache': 'warm',
            'gb_per_s': 2.0,
            'speedup': 1.0,
            **changes,
        }

    def test_bars_are_of_tensors_in_memory(self):
        rows = [
            self.row(),
            self.row(way='memcpy', gb_per_s=9.0, speedup=4.5),
            self.row(way='torch.load mmap', speedup=7.0),
            self.row(way='torch.load mmap + touch', speedup=3.0),
            self.row(result='numpy', speedup=7.0),
            self.row(protocol=5, speedup=7.0),
            self.row(cache='cold', speedup=7.0),
            self.row(file='g'),
        ]
        self.assertEqual(
            plots.bars(rows),
            {
                'f': {
                    'paddle.load': (2.0, 1.0),
                    'memcpy': (9.0, 4.5),
                    'torch.load mmap + touch': (2.0, 3.0),
                },
                'g': {'paddle.load': (2.0, 1.0)},
            },
        )

    def test_lines(self):
        rows = [
            {'n': n, 'way': way, 'seconds': n * factor}
            for n in (1, 10)
            for way, factor in (('a', 2), ('b', 3))
        ]
        self.assertEqual(
            plots.lines(rows, 'n', lambda row: row['way']),
            {'a': ([1, 10], [2, 20]), 'b': ([1, 10], [3, 30])},
        )

    def test_no_matplotlib_is_told(self):
        with (
            mock.patch('importlib.util.find_spec', lambda name: None),
            contextlib.redirect_stderr(io.StringIO()) as errors,
        ):
            self.assertIs(plots.can_draw(), False)
            plots.draw({}, Path('/nonexistent/plot.png'))
        self.assertIn('no matplotlib', errors.getvalue())


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


class TestPeers(BenchCase):
    def test_quick_run(self):
        disk = self.folder / 'disk'
        disk.mkdir()
        code = self.run_main(peers, *TINY_PEERS, '--disk', str(disk))
        self.assertEqual(code, 0, self.errors.getvalue())
        self.assertEqual(list(disk.iterdir()), [])
        rows = self.figures()['peers']
        for row in rows:
            self.assertEqual(row['verified_loads'], 1, row)
        ways = {
            (row['protocol'], row['result'], row['way'])
            for row in rows
            if row['cache'] == 'warm'
        }
        common_ways = {'paddle.load', 'num_workers=2', 'memcpy'}
        designs = {'published: deferred fill, 2', 'published: readinto, 2'}
        for protocol, result in ((4, 'numpy'), (4, 'Tensor'), (5, 'numpy')):
            expected = common_ways | (designs if protocol == 4 else set())
            for way in expected:
                self.assertIn((protocol, result, way), ways)
        for name in call_missing_peers():
            self.assertIn(f'{name} is left out', self.errors.getvalue())

    @parameterized.expand(['load_deferred', 'load_filling'])
    def test_a_wrong_bit_fails(self, name):
        with mock.patch.object(peer_jobs, name, load_one_wrong_bit):
            code = self.run_main(peers, *TINY_PEERS, '--no-cold')
        self.assertEqual(code, 1)
        self.assertIn('its bytes differ', self.errors.getvalue())
        self.assertEqual(self.output.getvalue(), '')

    def test_too_little_memory_is_told_before_it_is_used(self):
        with mock.patch.object(peers, 'available_memory', lambda: 5 << 20):
            code = self.run_main(peers, *TINY_PEERS)
        self.assertEqual(code, 1)
        self.assertIn('--total', self.errors.getvalue())


def call_missing_peers():
    """What a child says that is not there."""
    with contextlib.redirect_stderr(io.StringIO()):
        return common.call_fresh(peer_jobs.missing_peers)


class TestGrowth(BenchCase):
    def test_quick_run(self):
        code = self.run_main(growth, *TINY_GROWTH)
        self.assertEqual(code, 0, self.errors.getvalue())
        figures = self.figures()
        self.assertEqual(
            [row['count'] for row in figures['tensor_counts']],
            [10] * 4 + [20] * 4,
        )
        self.assertEqual(
            {row['payload_bytes'] for row in figures['file_sizes']}, {32 << 20}
        )
        self.assertEqual(
            [(row['entries'], row['way']) for row in figures['decisions']],
            [
                (entries, way)
                for entries in (100, 200)
                for way in (
                    'stock check',
                    'fast check',
                    'stock check',
                    'storage check',
                )
            ],
        )
        for part in 'tensor_counts', 'file_sizes', 'decisions':
            for row in figures[part]:
                self.assertEqual(row['verified_loads'], 1, row)

    @parameterized.expand(
        [
            (load_jobs, 'paddle_load', load_wrong_in_parallel),
            (resume_jobs, 'decide_fast', say_yes),
            (resume_jobs, 'decide_by_storage', say_yes),
        ]
    )
    def test_wrong_answers_fail(self, module, name, replacement):
        with mock.patch.object(module, name, replacement):
            code = self.run_main(growth, *TINY_GROWTH)
        self.assertEqual(code, 1)
        self.assertIn('VerificationError', self.errors.getvalue())


if __name__ == '__main__':
    unittest.main()
