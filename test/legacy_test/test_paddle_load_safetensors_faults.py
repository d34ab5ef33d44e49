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

"""Faults during paddle.load(safetensors=True, num_workers=...), and its costs."""

import collections
import errno
import gc
import os
import signal
import threading
import unittest
import weakref
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import safetensors.numpy
from num_workers_case import (
    load_threads,
    log_records,
    open_descriptors,
    preadv_replaced,
    small_thresholds,
    thread_starts_replaced,
    warnings_in,
)
from paddle.framework import io_utils, safetensors_reader
from parameterized import parameterized
from safetensors_case import (
    SafetensorsCase,
    attempts,
    file_of,
    outcome,
)

COUNT = 5
TENSORS = {f'{n}': ('F32', (100, 10 + n)) for n in range(COUNT)}
PAYLOAD_BYTES = sum(
    4 * rows * columns for _, (rows, columns) in TENSORS.values()
)


def nth_time(number, call, error):
    """Calls `call`, but raises an error the given time."""
    lock, times = threading.Lock(), []

    def stand_in(*args, **options):
        with lock:
            times.append(args)
            now = len(times) == number
        if now:
            raise error
        return call(*args, **options)

    return stand_in


class FaultCase(SafetensorsCase):
    def setUp(self):
        super().setUp()
        self.write(file_of(TENSORS))
        self.expected = outcome(self.load, 1)
        self.assertEqual(self.expected[0], 'value')

    def check_serial_with_one_warning(self, reason, num_workers=3):
        with attempts() as ends, log_records() as records, small_thresholds():
            found = outcome(self.load, num_workers)
        self.assertEqual(found, self.expected)
        self.assertIsNotNone(ends[0])
        [warning] = warnings_in(records)
        self.assertIn(self.path, warning)
        self.assertIn(reason, warning)
        self.assertIn(f'num_workers={num_workers}', warning)
        self.assertEqual(load_threads(), set())

    def check_parallel_without_a_word(self):
        with attempts() as ends, log_records() as records, small_thresholds():
            found = outcome(self.load, 3)
        self.assertEqual(found, self.expected)
        self.assertEqual(ends, [None])
        self.assertEqual(records, [])


class TestFaults(FaultCase):
    def test_no_fault(self):
        self.check_parallel_without_a_word()

    @parameterized.expand([(1,), (2,), (3,)])
    def test_input_output_error(self, number):
        error = OSError(errno.EIO, os.strerror(errno.EIO))
        preadv = nth_time(number, os.preadv, error)
        with preadv_replaced(lambda _, *args: preadv(*args)):
            self.check_serial_with_one_warning(error.strerror)

    def test_input_output_error_in_the_header(self):
        error = OSError(errno.EIO, os.strerror(errno.EIO))
        with mock.patch.object(os, 'pread', side_effect=error):
            self.check_serial_with_one_warning(error.strerror)

    def test_short_reads(self):
        reads = []

        def short(preadv, fd, views, offset):
            reads.append(offset)
            return preadv(fd, [views[0][:777]], offset)

        with preadv_replaced(short):
            self.check_parallel_without_a_word()
        self.assertGreater(len(reads), PAYLOAD_BYTES // 777)

    def test_file_seems_to_end_early(self):
        with preadv_replaced(lambda preadv, *args: 0):
            self.check_serial_with_one_warning('EOFError')

    def test_thread_cannot_be_started(self):
        failing = nth_time(1, None, RuntimeError("can't start new thread"))
        with thread_starts_replaced(failing):
            self.check_serial_with_one_warning("can't start new thread")

    @parameterized.expand([(1,), (COUNT,)])
    def test_no_memory(self, number):
        new_target = nth_time(number, io_utils._new_target, MemoryError())
        with mock.patch.object(io_utils, '_new_target', new_target):
            self.check_serial_with_one_warning('no memory')

    @parameterized.expand([(1,), (COUNT,)])
    def test_result_cannot_be_made(self, number):
        make = nth_time(
            number, safetensors_reader._make_array, RuntimeError('no result')
        )
        with mock.patch.object(safetensors_reader, '_make_array', make):
            self.check_serial_with_one_warning('no result')

    def test_error_of_both_ways_is_the_librarys(self):
        error = OSError(errno.EIO, os.strerror(errno.EIO))
        with (
            small_thresholds(),
            preadv_replaced(nth_time(1, None, error)),
            mock.patch.object(
                safetensors.numpy, 'load_file', side_effect=LookupError
            ),
            self.assertRaises(LookupError) as raised,
        ):
            self.load()
        self.assertIsNone(raised.exception.__cause__)

    def test_interrupt(self):
        make = nth_time(2, safetensors_reader._make_array, KeyboardInterrupt())
        with (
            small_thresholds(),
            mock.patch.object(safetensors_reader, '_make_array', make),
            log_records() as records,
            self.assertRaises(KeyboardInterrupt),
        ):
            self.load()
        self.assertEqual(load_threads(), set())
        self.assertEqual(records, [])

    def test_alarm_while_the_header_is_read(self):
        """Its handler raises what a file that cannot be opened does."""

        def handler(*args):
            raise OSError('alarm')

        old = signal.signal(signal.SIGALRM, handler)
        self.addCleanup(signal.signal, signal.SIGALRM, old)
        with (
            small_thresholds(),
            mock.patch.object(
                os.path,
                'samestat',
                lambda *_: signal.raise_signal(signal.SIGALRM),
            ),
            self.assertRaisesRegex(OSError, '^alarm$'),
        ):
            self.load()

    def test_memory_is_free_when_the_library_loads(self):
        """What was read before a fault is not held meanwhile."""
        made, held = [], []
        make = safetensors_reader._make_array

        def failing(*args):
            if len(made) == 2:
                raise RuntimeError('no result')
            value = make(*args)
            made.append(weakref.ref(value))
            return value

        def load_file(*args, **options):
            held.extend(ref for ref in made if ref() is not None)
            return {}

        gc.disable()
        self.addCleanup(gc.enable)
        with (
            small_thresholds(),
            mock.patch.object(safetensors_reader, '_make_array', failing),
            mock.patch.object(safetensors.numpy, 'load_file', load_file),
        ):
            self.load()
        self.assertEqual(len(made), 2)
        self.assertEqual(held, [])


class TestOtherFilesAndThreads(FaultCase):
    def replace(self):
        """Another file, of the same size, in the place of the first."""
        other = os.path.join(self.directory, 'other')
        self.write(file_of(TENSORS, seed=1), other)
        os.replace(other, self.path)

    def test_file_is_replaced_before_the_header_is_read(self):
        safe_open = safetensors.safe_open

        def replaced(*args, **options):
            self.replace()
            return safe_open(*args, **options)

        with (
            small_thresholds(),
            attempts() as ends,
            mock.patch.object(safetensors, 'safe_open', replaced),
        ):
            found = outcome(self.load)
        self.assertIn('replaced', str(ends[0]))
        self.assertNotEqual(found, self.expected)
        self.assertEqual(found, outcome(self.load, 1))

    def test_file_is_replaced_during_the_load(self):
        once = threading.Lock()

        def replacing(preadv, *args):
            if once.acquire(blocking=False):
                self.replace()
            return preadv(*args)

        with preadv_replaced(replacing):
            self.check_parallel_without_a_word()
        self.assertNotEqual(outcome(self.load, 1), self.expected)

    def test_file_is_truncated_during_the_load(self):
        once = threading.Lock()

        def truncating(preadv, *args):
            if once.acquire(blocking=False):
                os.truncate(self.path, 1000)
            return preadv(*args)

        with small_thresholds(), preadv_replaced(truncating):
            found = outcome(self.load)
        self.assertEqual(found[:2], ('raises', safetensors.SafetensorError))
        self.assertEqual(found, outcome(self.load, 1))

    def test_loads_in_many_threads(self):
        barrier = threading.Barrier(6)

        def load(_):
            barrier.wait()
            return outcome(self.load, 3)

        with (
            small_thresholds(),
            attempts() as ends,
            ThreadPoolExecutor(6) as pool,
        ):
            for found in pool.map(load, range(6)):
                self.assertEqual(found, self.expected)
        self.assertEqual(ends, [None] * 6)


class TestCosts(FaultCase):
    def counted_load(self, num_workers, path=None):
        """-> reads outside the workers, reads in them, threads started."""
        reads, worker_reads, started = [], [], []
        pread = os.pread

        def counted_pread(fd, length, offset):
            reads.append((offset, length))
            return pread(fd, length, offset)

        def counted_preadv(preadv, fd, views, offset):
            worker_reads.append((offset, sum(len(view) for view in views)))
            return preadv(fd, views, offset)

        def counted_start(start, *args):
            started.append(args)
            return start(*args)

        with (
            mock.patch.object(os, 'pread', counted_pread),
            preadv_replaced(counted_preadv),
            thread_starts_replaced(counted_start),
        ):
            self.load(num_workers, path)
        return reads, worker_reads, started

    @parameterized.expand([(2,), (3,), (100,)])
    def test_each_byte_is_read_once(self, num_workers):
        with small_thresholds(piece_bytes=3000):
            counts = self.counted_load(num_workers)
        reads, worker_reads, started = counts
        self.assertEqual(reads, [(0, 8)])
        times = collections.Counter()
        for offset, length in worker_reads:
            times.update(range(offset, offset + length))
        file_bytes = os.path.getsize(self.path)
        self.assertEqual(
            times,
            dict.fromkeys(range(file_bytes - PAYLOAD_BYTES, file_bytes), 1),
        )
        self.assertGreaterEqual(len(started), 1)
        self.assertLessEqual(len(started), num_workers)

    def test_neighbours_share_reads(self):
        with small_thresholds(piece_bytes=10 * PAYLOAD_BYTES):
            _, worker_reads, _ = self.counted_load(2)
        self.assertEqual(len(worker_reads), 2)

    def test_small_file_is_not_touched(self):
        opened, safe_open = [], safetensors.safe_open

        def recorded(*args, **options):
            opened.append(args)
            return safe_open(*args, **options)

        with mock.patch.object(safetensors, 'safe_open', recorded):
            counts = self.counted_load(8)
        self.assertEqual(counts, ([], [], []))
        self.assertEqual(opened, [])

    @parameterized.expand([(None,), (0,), (1,)])
    def test_serial_load_reads_nothing_here(self, workers):
        with small_thresholds():
            counts = self.counted_load(workers)
        self.assertEqual(counts, ([], [], []))

    def test_arrays_have_the_memory_that_was_read_to(self):
        made, new_target = [], io_utils._new_target

        def recorded(payload):
            value, address = new_target(payload)
            made.append((address, payload.length_bytes))
            return value, address

        with (
            small_thresholds(),
            mock.patch.object(io_utils, '_new_target', recorded),
        ):
            value = self.load()
        found = [(item.ctypes.data, item.nbytes) for item in value.values()]
        self.assertEqual(found, made)

    def test_file_is_closed(self):
        """With the values alive; the library keeps a mapping instead."""
        before = open_descriptors()
        with small_thresholds(), attempts() as ends:
            value = self.load()
        self.assertEqual(open_descriptors(), before)
        with open('/proc/self/maps') as f:
            self.assertNotIn(self.path, f.read())
        self.assertEqual(ends, [None])
        del value


if __name__ == '__main__':
    unittest.main()
