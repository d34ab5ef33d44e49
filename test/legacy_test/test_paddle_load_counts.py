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

"""What paddle.load(num_workers=...) costs, counted: reads, bytes, threads."""

import collections
import contextlib
import os
import pickle
import subprocess
import sys
import threading
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import paddle
from num_workers_case import (
    LARGE_BYTES,
    NumWorkersCase,
    attempts,
    outcome,
    small_thresholds,
    thread_starts_replaced,
)
from paddle.framework import io_utils
from parameterized import parameterized


class Counts:
    """Where the file was read, how often, and by which threads."""

    def __init__(self):
        self.lock = threading.Lock()
        self.pread_calls = []
        self.preadv_calls = []
        self.started = []
        self.made = []


@contextlib.contextmanager
def counted():
    counts = Counts()
    pread, preadv = os.pread, os.preadv
    new_target = io_utils._new_target

    def counted_pread(fd, length, offset):
        counts.pread_calls.append((offset, length))
        return pread(fd, length, offset)

    def counted_preadv(fd, views, offset):
        sizes = [len(view) for view in views]
        with counts.lock:
            counts.preadv_calls.append((offset, sizes))
        return preadv(fd, views, offset)

    def counted_start(start, *args):
        counts.started.append(args)
        return start(*args)

    def counted_target(payload):
        counts.made.append(payload)
        return new_target(payload)

    with (
        mock.patch.object(os, 'pread', counted_pread),
        mock.patch.object(os, 'preadv', counted_preadv),
        thread_starts_replaced(counted_start),
        mock.patch.object(io_utils, '_new_target', counted_target),
    ):
        yield counts


def read_times(calls):
    """How often each byte of the file was asked for."""
    times = collections.Counter()
    for offset, sizes in calls:
        times.update(range(offset, offset + sum(sizes)))
    return times


class TestReads(NumWorkersCase):
    def load(self, value, num_workers, protocol=4, **thresholds):
        self.dump(value, protocol)
        with (
            small_thresholds(**thresholds),
            attempts() as ends,
            counted() as counts,
        ):
            found = outcome(self.unpickle, num_workers)
        self.assertEqual(found, outcome(self.unpickle, 1))
        self.assertEqual([end is None for end in ends], [protocol >= 4])
        return counts

    @parameterized.expand(
        [(p, n, piece) for p in (4, 5) for n in (2, 8)
         for piece in (7_000, 100_000)]
    )  # fmt: skip
    def test_payload_bytes_are_read_once(self, protocol, num_workers, piece):
        value = {str(n): np.full(LARGE_BYTES, n, 'u1') for n in range(1, 6)}
        counts = self.load(value, num_workers, protocol, piece_bytes=piece)
        self.assertEqual(
            [payload.length_bytes for payload in counts.made],
            [LARGE_BYTES] * 5,
        )
        worker_reads = [
            call for call in counts.preadv_calls if sum(call[1]) > 512
        ]
        times = read_times(worker_reads)
        for payload in counts.made:
            inside = range(payload.offset, payload.end)
            self.assertEqual({times[at] for at in inside}, {1})

    def test_number_of_reads_follows_the_bytes(self):
        value = [bytes(LARGE_BYTES) for _ in range(32)]
        counts = self.load(value, 4, piece_bytes=8 * LARGE_BYTES)
        large = [sizes for _, sizes in counts.preadv_calls if sum(sizes) > 512]
        self.assertEqual(len(large), 4)
        self.assertEqual([len(sizes) for sizes in large], [15] * 4)

    def test_reads_outside_the_payloads_are_few(self):
        value = {str(n): np.ones(LARGE_BYTES, 'u1') for n in range(40)}
        counts = self.load(value, 4)
        # Two windows for each payload, one to index it and one to unpickle,
        # and some for the ends.
        self.assertLessEqual(len(counts.pread_calls), 2 * 40 + 6)
        total = sum(length for _, length in counts.pread_calls)
        self.assertLessEqual(total, (2 * 40 + 6) * io_utils._WINDOW_BYTES)

    def test_frame_is_read_at_once(self):
        value = [list(range(10_000)), bytes(LARGE_BYTES)]
        counts = self.load(value, 2)
        frame_reads = [n for _, n in counts.pread_calls if n > 512]
        self.assertEqual(len(frame_reads), 1)

    @parameterized.expand([(2,), (3,), (8,), (1000,)])
    def test_threads(self, num_workers):
        value = [bytes(LARGE_BYTES) for _ in range(2)]
        counts = self.load(
            value, num_workers, piece_bytes=30_000, min_piece_bytes=30_000
        )
        self.assertGreaterEqual(len(counts.started), 1)
        self.assertLessEqual(len(counts.started), min(num_workers, 5))

    def test_all_workers_read(self):
        """With all of them busy, as many threads as asked for are started."""
        everyone = threading.Barrier(3)
        read_piece = io_utils._read_piece

        def busy(*args):
            everyone.wait()
            read_piece(*args)

        with mock.patch.object(io_utils, '_read_piece', busy):
            counts = self.load([bytes(LARGE_BYTES)] + [
                bytes([n]) * LARGE_BYTES for n in range(1, 3)
            ], 3, piece_bytes=LARGE_BYTES)  # fmt: skip
        self.assertEqual(len(counts.started), 3)

    @parameterized.expand([(2,), (3,)])
    def test_no_thread_for_old_protocols(self, protocol):
        counts = self.load([bytes(LARGE_BYTES)], 8, protocol)
        self.assertEqual(counts.started, [])
        self.assertEqual(counts.made, [])
        self.assertLessEqual(len(counts.pread_calls), 1)

    def test_one_payload_is_shared_by_the_workers(self):
        """With the thresholds as they are."""
        self.dump(bytes(8 << 20))
        with counted() as counts, attempts() as ends:
            self.unpickle(4)
        large = [sum(s) for _, s in counts.preadv_calls if sum(s) > 512]
        self.assertEqual(sorted(large), [2 << 20] * 4)
        self.assertEqual(ends, [None])

    @parameterized.expand(
        [
            ('small_only', [bytes(1000)] * 100),
            ('medium_only', [bytes([n]) * 100_000 for n in range(50)]),
            ('few_bytes', [bytes(3 << 20)]),
        ]
    )
    def test_no_thread_below_the_thresholds(self, name, value):
        self.dump(value)
        with counted() as counts, attempts() as ends:
            self.unpickle(8)
        self.assertEqual(counts.started, [])
        self.assertEqual(counts.made, [])
        self.assertIsInstance(ends[0], io_utils._StreamUnsuited)

    def test_small_payloads_beside_large_ones_are_not_planned(self):
        self.dump([bytes([n]) * 100_000 for n in range(9)] + [bytes(4 << 20)])
        with counted() as counts, attempts() as ends:
            self.unpickle(2)
        sizes = [payload.length_bytes for payload in counts.made]
        self.assertEqual(sizes, [4 << 20])
        self.assertEqual(ends, [None])

    def test_index_gives_up_on_long_streams_of_small_opcodes(self):
        """Such as the pickler in Python may write without frames."""
        opcodes = b'N0' * 50_000
        self.write(b'\x80\x04' + opcodes + pickle.dumps(bytes(4 << 20), 4)[2:])
        with counted() as counts, attempts() as ends:
            self.unpickle(2)
        self.assertLess(len(counts.pread_calls), 10)
        self.assertIsInstance(ends[0], io_utils._StreamUnsuited)

    def test_huge_pages_are_advised_for_large_payloads_only(self):
        advised = []

        def madvise(address, length, advice):
            advised.append((address, length))
            return 0

        self.dump([bytes(1 << 20), bytes(4 << 20), bytearray(5 << 20)])
        with (
            mock.patch.object(io_utils, '_madvise', lambda: madvise),
            attempts() as ends,
        ):
            self.unpickle(2)
        self.assertEqual(ends, [None])
        self.assertEqual(len(advised), 2)
        for (address, length), size in zip(
            advised, (4 << 20, 5 << 20), strict=True
        ):
            self.assertEqual(address % os.sysconf('SC_PAGESIZE'), 0)
            self.assertGreaterEqual(length, size)
            self.assertLess(length, size + os.sysconf('SC_PAGESIZE'))


class TestDefaultPath(NumWorkersCase):
    @parameterized.expand([('left_out', {}), *(
        (str(n), {'num_workers': n}) for n in (None, 0, 1)
    )])  # fmt: skip
    def test_unpickles_once_and_reads_nothing_itself(self, name, options):
        paddle.save({'w': paddle.ones([3 << 20])}, self.path)
        calls, load = [], pickle.load

        def recorded(*args, **kwargs):
            calls.append((args, kwargs))
            return load(*args, **kwargs)

        with (
            counted() as counts,
            mock.patch.object(pickle, 'load', recorded),
        ):
            paddle.load(self.path, return_numpy=True, **options)
        self.assertEqual(len(calls), 1)
        (f,), keywords = calls[0]
        self.assertEqual(f.name, self.path)
        self.assertEqual(keywords, {'encoding': 'latin1'})
        self.assertEqual(counts.pread_calls, [])
        self.assertEqual(counts.preadv_calls, [])
        self.assertEqual(counts.started, [])


# Run by both trees: prints what files load as, and what they raise.
LOAD_ALL = '''
import hashlib, pickle, sys
import paddle

for path in sys.argv[2:]:
    for options in {}, {'return_numpy': True}, {'keep_name_table': True}:
        try:
            value = paddle.load(path, **options)
        except Exception as error:
            print(type(error).__name__, error)
            continue
        for key in sorted(value):
            item = value[key]
            if isinstance(item, paddle.Tensor):
                print(key, item.name, item.dtype, item.shape)
                item = item.numpy()
            digest = hashlib.sha256(pickle.dumps(item, 4)).hexdigest()
            print(key, type(item).__name__, digest)
print(paddle.__file__, file=open(sys.argv[1], 'w'))
'''


class TestTrees(NumWorkersCase):
    """Without the option a fork tree loads as the tree that it is made of."""

    def load_all(self, python_path, paths):
        note = os.path.join(self.directory, 'note')
        environment = {**os.environ, 'PYTHONPATH': python_path}
        done = subprocess.run(
            [sys.executable, '-c', LOAD_ALL, note, *paths],
            env=environment,
            cwd=self.directory,
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout, Path(note).read_text().strip()

    def test_plain_and_fork_tree(self):
        here = Path(paddle.__file__)
        plain = Path(paddle.base.__file__).resolve().parent.parent
        if plain == here.parent.resolve():
            self.skipTest('this tree is not made of links to another')
        paths = []
        layer = paddle.nn.Linear(200, 300)
        for protocol in 2, 3, 4:
            path = os.path.join(self.directory, f'p{protocol}.pdparams')
            paddle.save(layer.state_dict(), path, protocol=protocol)
            paths.append(path)
        data = Path(paths[-1]).read_bytes()
        paths.append(self.write(data[: len(data) // 2]))
        paths.append(os.path.join(self.directory, 'missing'))
        fork_found, fork_file = self.load_all(str(here.parent.parent), paths)
        plain_found, plain_file = self.load_all(str(plain.parent), paths)
        self.assertEqual(fork_file, str(here))
        self.assertEqual(plain_file, str(plain / '__init__.py'))
        self.assertEqual(fork_found, plain_found)
        self.assertGreater(len(plain_found.splitlines()), 20)


if __name__ == '__main__':
    unittest.main()
