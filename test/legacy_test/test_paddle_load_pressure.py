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

"""Loads with too little memory, descriptors or threads, and of odd files."""

import itertools
import os
import pickle
import resource
import struct
import threading
import unittest
from unittest import mock

import numpy as np
import paddle
from num_workers_case import (
    LARGE_BYTES,
    NumWorkersCase,
    attempts,
    load_threads,
    log_records,
    outcome,
    preadv_replaced,
    small_thresholds,
    warnings_in,
)
from parameterized import parameterized
from pressure_case import (
    address_space_bytes,
    available_bytes,
    in_child,
)

MIB = 1 << 20


class PressureCase(NumWorkersCase):
    def load(self, num_workers):
        return paddle.load(
            self.path, return_numpy=True, num_workers=num_workers
        )

    def parallel(self, num_workers=3):
        """Outcome, whether it was read in parallel, and the warnings."""
        with attempts() as ends, log_records() as records:
            found = outcome(self.load, num_workers)
        return found, ends == [None], warnings_in(records)


def limited(limit, soft):
    """Sets this process a limit that it may not raise again."""
    _, hard = resource.getrlimit(limit)
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(limit, (soft, soft))


class TestAddressSpace(PressureCase):
    """Limits as batch systems set them; beyond them malloc gives nothing."""

    WORKERS = 4
    # Larger than what malloc may have lying about (mallopt(3), at most 32 MiB
    # are kept for later).
    PAYLOAD_BYTES = 33 * MIB
    # Of each thread, as it is set where a limit is not.
    STACK_BYTES = 8 * MIB

    def dump_arrays(self, count):
        arrays = [np.full(self.PAYLOAD_BYTES, n, 'u1') for n in range(count)]
        self.dump(arrays)
        self.ends = [array[[0, -1]].tolist() for array in arrays]

    def end_below(self, more_bytes, num_workers):
        """How a load ends if so many bytes of addresses are left."""
        limited(resource.RLIMIT_AS, address_space_bytes() + more_bytes)
        with attempts() as ends, log_records() as records:
            try:
                value = self.load(num_workers)
                end = [a[[0, -1]].tolist() for a in value] == self.ends
            except MemoryError:
                end = 'MemoryError'
        return end, ends == [None], len(warnings_in(records))

    def test_one_and_a_half_times_the_file(self):
        self.dump_arrays(3)
        limit_bytes = 3 * self.PAYLOAD_BYTES * 3 // 2
        end = in_child(self.end_below, limit_bytes, self.WORKERS)
        self.assertEqual(end, (True, True, 0))

    def test_ladder(self):
        """From too little for a serial load to enough for threads.

        Between is too little for threads, but for those of earlier loads,
        whose stacks are kept.
        """
        self.dump_arrays(2)
        most = 2 * self.PAYLOAD_BYTES + (self.WORKERS + 2) * self.STACK_BYTES
        ends = []
        for more_bytes in range(self.PAYLOAD_BYTES // 2, most, 6 * MIB):
            serial, _, _ = in_child(self.end_below, more_bytes, 1)
            parallel, was_parallel, warnings = in_child(
                self.end_below, more_bytes, self.WORKERS
            )
            message = f'{more_bytes} bytes: {serial}, {parallel}, {ends}'
            self.assertIn(serial, (True, 'MemoryError'), message)
            self.assertIn(parallel, (True, 'MemoryError'), message)
            # Below that, memory left over from other loads decides.
            if more_bytes >= 2 * self.PAYLOAD_BYTES:
                self.assertEqual(parallel, serial, message)
            # An attempt that could not go on said so.
            self.assertEqual(warnings, not was_parallel, message)
            ends.append((serial, was_parallel))
        self.assertEqual(ends[0], ('MemoryError', False))
        self.assertEqual(ends[-1], (True, True))


class TestDescriptors(PressureCase):
    def test_ladder(self):
        """From none for the file to more than enough."""
        self.dump([np.arange(LARGE_BYTES // 8) for _ in range(3)])
        used = len(os.listdir('/proc/self/fd')) - 1
        expected = outcome(self.load, 1)
        ends = []
        for more in range(-2, 10):
            serial, _, _ = in_child(self.end_below, used + more, 1)
            parallel, was_parallel, warnings = in_child(
                self.end_below, used + more, 3
            )
            self.assertEqual(parallel, serial, more)
            self.assertLessEqual(len(warnings), 1)
            ends.append((serial == expected, was_parallel))
        self.assertEqual(ends[0], (False, False))
        self.assertEqual(ends[-1], (True, True))

    def end_below(self, count, num_workers):
        limited(resource.RLIMIT_NOFILE, count)
        with small_thresholds(20_000):
            return self.parallel(num_workers)


class TestThreads(PressureCase):
    NOBODY = 65534

    def setUp(self):
        super().setUp()
        self.dump([np.arange(LARGE_BYTES // 8) for _ in range(3)])
        os.chmod(self.directory, 0o755)
        self.expected = outcome(self.load, 1)
        with small_thresholds(20_000):
            self.parallel()  # what it imports may not be everybody's to read

    def end_below(self, count):
        """As one who is not root, and may have so many threads."""
        limited(resource.RLIMIT_NPROC, count)
        if not os.getuid():
            os.setgid(self.NOBODY)
            os.setuid(self.NOBODY)
        with small_thresholds(20_000):
            found, was_parallel, warnings = self.parallel()
        return found == self.expected, was_parallel, warnings

    def test_none(self):
        right, was_parallel, warnings = in_child(self.end_below, 1)
        self.assertTrue(right)
        self.assertFalse(was_parallel)
        [warning] = warnings
        self.assertIn("can't start new thread", warning)

    def test_enough(self):
        self.assertEqual(in_child(self.end_below, 10_000), (True, True, []))


class TestFileChanges(PressureCase):
    """At each of the reads in turn."""

    def setUp(self):
        super().setUp()
        self.write_next(0)

    def write_next(self, number):
        """Other values each time: those of an earlier load are wrong."""
        self.data = pickle.dumps(
            [np.full(LARGE_BYTES // 8, number + 0.1 * n) for n in range(4)], 4
        )
        self.write(self.data)
        self.expected = outcome(self.load, 1)

    def changed_at_each_read(self, change):
        """Yields what came of a load during whose n-th read a change was."""
        for number in itertools.count(1):
            self.write_next(number)
            calls = itertools.count(1)
            fired = []

            def stand_in(preadv, *args, calls=calls, fired=fired, n=number):
                if next(calls) == n:
                    fired.append(True)
                    change()
                return preadv(*args)

            with small_thresholds(20_000), preadv_replaced(stand_in):
                result = self.parallel()
            self.assertEqual(load_threads(), set())
            if not fired:
                self.assertEqual(result, (self.expected, True, []))
                break
            yield result
        self.assertGreater(number, 10)

    def test_replaced(self):
        other = os.path.join(self.directory, 'other')

        def change():
            self.write(pickle.dumps([1, 2], 4), other)
            os.replace(other, self.path)

        for result in self.changed_at_each_read(change):
            self.assertEqual(result, (self.expected, True, []))

    def test_removed(self):
        for result in self.changed_at_each_read(lambda: os.remove(self.path)):
            self.assertEqual(result, (self.expected, True, []))

    def test_grows(self):
        def change():
            with open(self.path, 'ab') as f:
                f.write(self.data)

        for result in self.changed_at_each_read(change):
            self.assertEqual(result, (self.expected, True, []))

    @parameterized.expand([(0,), (1,), (1000,), (LARGE_BYTES * 5 // 2,)])
    def test_truncated(self, length_bytes):
        """What was read in time is a value, all else the serial error."""
        self.write(self.data[:length_bytes])
        serial_error = outcome(self.load, 1)
        self.assertEqual(serial_error[0], 'raises')
        ends = set()
        for found, was_parallel, warnings in self.changed_at_each_read(
            lambda: os.truncate(self.path, length_bytes)
        ):
            self.assertEqual(
                found, self.expected if was_parallel else serial_error
            )
            self.assertLessEqual(len(warnings), 1)
            ends.add(found[0])
        self.assertIn('raises', ends)


class TestSlowFile(PressureCase):
    WORKERS = 3

    def test_offsets_rise(self):
        """What fetches ahead is not sent back, but for those in flight."""
        self.dump([np.arange(LARGE_BYTES // 8) for _ in range(12)])
        lock, begun = threading.Lock(), []

        def slow(preadv, fd, views, offset):
            with lock:
                begun.append((threading.get_native_id(), offset))
            threading.Event().wait(0.0005)
            return preadv(fd, views, offset)

        with small_thresholds(20_000), preadv_replaced(slow):
            found, was_parallel, _ = self.parallel(self.WORKERS)
        self.assertEqual(found, outcome(self.load, 1))
        self.assertTrue(was_parallel)
        offsets = [offset for _, offset in begun]
        self.assertGreater(len(offsets), 30)
        for thread in {thread for thread, _ in begun}:
            own = [offset for who, offset in begun if who == thread]
            self.assertEqual(own, sorted(own))
        # What lies below the highest and has not begun is another thread's.
        begun_to = itertools.accumulate(
            map(sorted(offsets).index, offsets), max
        )
        for count, highest in enumerate(begun_to, 1):
            self.assertLess(highest + 1 - count, self.WORKERS)

    def test_rest_of_the_file_is_read_in_order(self):
        """For the index; the unpickler is given what that has read."""
        self.dump([np.arange(LARGE_BYTES // 8) for _ in range(12)])
        pread, offsets = os.pread, []

        def recorded(fd, length, offset):
            offsets.append(offset)
            return pread(fd, length, offset)

        with (
            small_thresholds(20_000),
            mock.patch.object(os, 'pread', recorded),
        ):
            found, was_parallel, _ = self.parallel(self.WORKERS)
        self.assertTrue(was_parallel)
        self.assertEqual(offsets, sorted(offsets))


class TestLargePayloads(NumWorkersCase):
    """Lengths that 31 and 32 bits do not hold, in files that are mostly holes.

    One load needs all of the memory, so there is one for each file; zeros are
    what it is compared with, but for the marks.
    """

    MARK = bytes(range(1, 201))
    # Others want memory as well.
    SPARE_BYTES = 6 << 30

    def write_sparse(self, length_bytes):
        """A list of a payload, with marks in it, and a small one."""
        is_long = length_bytes >> 32  # BINBYTES8, else BINBYTES
        start = b'\x80\x04]\x94(' + struct.pack(
            '<cQ' if is_long else '<cI',
            b'\x8e' if is_long else b'B',
            length_bytes,
        )
        places = [
            0, (1 << 31) - 100, min((1 << 32) - 100, length_bytes - 200),
            length_bytes - 200,
        ]  # fmt: skip
        end = b'\x94B' + struct.pack('<I', 5) + b'small\x94e.'
        with open(self.path, 'wb') as f:
            f.write(start)
            for place in places:
                f.seek(len(start) + place)
                f.write(self.MARK)
            f.seek(len(start) + length_bytes)
            f.write(end)
        return places

    @parameterized.expand([('2_GiB', (1 << 31) + 12_345),
                           ('4_GiB', (1 << 32) + 12_345)])  # fmt: skip
    def test_payload_above(self, _, length_bytes):
        if available_bytes() < length_bytes + self.SPARE_BYTES:
            self.skipTest(f'{length_bytes + self.SPARE_BYTES} bytes of memory')
        places = self.write_sparse(length_bytes)
        with attempts() as ends, log_records() as records:
            large, small = self.unpickle(3)
        self.assertEqual((ends, warnings_in(records)), ([None], []))
        self.assertEqual(small, b'small')
        self.assertEqual(len(large), length_bytes)
        view = memoryview(large)
        for place in places:
            self.assertEqual(view[place : place + 200], self.MARK)
        words = np.frombuffer(large, 'u8', length_bytes // 8)
        nonzero = np.count_nonzero(words[:: 1 << 9])  # one of each page
        self.assertLessEqual(nonzero, len(places))


if __name__ == '__main__':
    unittest.main()
