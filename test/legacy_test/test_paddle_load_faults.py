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

"""Faults beside a parallel load: each ends in the serial load, cleanly."""

import errno
import os
import pickle
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest import mock

import numpy as np
import paddle
from num_workers_case import (
    LARGE_BYTES,
    NumWorkersCase,
    attempts,
    fingerprint,
    load_threads,
    log_records,
    preadv_replaced,
    small_thresholds,
    thread_starts_replaced,
    warnings_in,
)
from paddle.framework import io_utils
from parameterized import parameterized

PAYLOAD_COUNT = 4


def sample():
    arrays = {
        f'w{index}': np.arange(index, index + LARGE_BYTES // 8)
        for index in range(PAYLOAD_COUNT)
    }
    return {**arrays, 'raw': bytearray(b'raw' * LARGE_BYTES), 'note': 'text'}


class FaultCase(NumWorkersCase):
    def setUp(self):
        super().setUp()
        self.value = sample()
        self.dump(self.value)
        self.expected = fingerprint(self.unpickle(1))

    def check_serial_with_one_warning(self, *names, num_workers=2):
        serial_loads = []

        def serial_load(f, encoding):
            serial_loads.append(f.tell())
            return pickle.load(f, encoding=encoding)

        with (
            log_records() as records,
            mock.patch.object(
                io_utils, '_unpickler_behind', lambda _: pickle.Unpickler
            ),
        ):
            value = self.unpickle(num_workers, serial_load=serial_load)
        self.assertEqual(fingerprint(value), self.expected)
        self.assertEqual(serial_loads, [0])
        self.assertEqual(load_threads(), set())
        messages = warnings_in(records)
        self.assertEqual(len(messages), 1, messages)
        for name in (self.path, *names):
            self.assertIn(name, messages[0])

    def check_parallel_without_a_word(self, num_workers=2):
        with log_records() as records, attempts() as ends:
            value = self.unpickle(num_workers)
        self.assertEqual(fingerprint(value), self.expected)
        self.assertEqual(ends, [None])
        self.assertEqual([r.getMessage() for r in records], [])


class TestReadFaults(FaultCase):
    def failing_at(self, number, error):
        """A preadv that fails when it is called for the number-th time."""
        lock, calls = threading.Lock(), []

        def stand_in(preadv, *args):
            with lock:
                calls.append(args)
                count = len(calls)
            if count == number:
                raise error
            return preadv(*args)

        return preadv_replaced(stand_in)

    @parameterized.expand([(1,), (2,), (7,), (20,)])
    def test_nth_read_fails(self, number):
        error = OSError(errno.EIO, 'Input/output error')
        with small_thresholds(), self.failing_at(number, error):
            self.check_serial_with_one_warning('Input/output error')
        with small_thresholds():
            self.check_parallel_without_a_word()

    def test_control_no_read_fails(self):
        with small_thresholds(), self.failing_at(10**6, OSError()):
            self.check_parallel_without_a_word()

    @parameterized.expand(
        [
            ('BlockingIOError', BlockingIOError(errno.EAGAIN, 'try again')),
            ('OSError', OSError(errno.EBADF, 'bad descriptor')),
            ('MemoryError', MemoryError('no room')),
            ('ValueError', ValueError('a bug')),
        ]
    )
    def test_kind_of_error_is_named(self, name, error):
        with small_thresholds(), self.failing_at(3, error):
            self.check_serial_with_one_warning(name, str(error))

    def test_all_reads_fail(self):
        def stand_in(*args):
            raise OSError(errno.EIO, 'Input/output error')

        with small_thresholds(), preadv_replaced(stand_in):
            self.check_serial_with_one_warning(
                'Input/output error', num_workers=8
            )

    @parameterized.expand([(1,), (4096,), (9_999,)])
    def test_short_reads_go_on(self, most_bytes):
        def stand_in(preadv, fd, views, offset):
            return preadv(fd, [views[0][:most_bytes]], offset)

        self.value = [bytes(range(256)) * 257, b'\x01' * LARGE_BYTES]
        self.dump(self.value)
        self.expected = fingerprint(self.value)
        with small_thresholds(), preadv_replaced(stand_in):
            self.check_parallel_without_a_word()

    def test_short_pread_of_the_opcodes(self):
        pread = os.pread

        def short_pread(fd, length, offset):
            return pread(fd, min(length, 3), offset)

        with small_thresholds(), mock.patch.object(os, 'pread', short_pread):
            self.check_parallel_without_a_word()

    def test_file_ends_early(self):
        def stand_in(preadv, fd, views, offset):
            return 0 if offset > 2 * LARGE_BYTES else preadv(fd, views, offset)

        with small_thresholds(), preadv_replaced(stand_in):
            self.check_serial_with_one_warning('EOFError', 'the file ends')

    @parameterized.expand([('fstat',), ('pread',)])
    def test_no_parallel_reading_at_all(self, function):
        error = OSError(errno.EIO, 'Input/output error')
        with (
            small_thresholds(),
            mock.patch.object(os, function, side_effect=error),
        ):
            self.check_serial_with_one_warning('Input/output error')

    def test_nth_pread_fails(self):
        pread = os.pread
        with (
            small_thresholds(),
            mock.patch.object(os, 'pread', side_effect=pread) as undisturbed,
        ):
            self.unpickle(2)
        self.assertGreater(undisturbed.call_count, 2)
        for number in range(undisturbed.call_count):
            countdown = iter(range(number))

            def failing(*args, countdown=countdown):
                if next(countdown, None) is None:
                    raise OSError(errno.EIO, 'Input/output error')
                return pread(*args)

            with (
                self.subTest(number),
                small_thresholds(),
                mock.patch.object(os, 'pread', failing),
            ):
                self.check_serial_with_one_warning('Input/output error')


class TestThreadAndMemoryFaults(FaultCase):
    @parameterized.expand([(1,), (2,), (5,)])
    def test_nth_thread_does_not_start(self, number):
        started, enough = [], threading.Event()

        def failing(start, *args):
            started.append(args)
            if len(started) == number:
                enough.set()
                raise RuntimeError("can't start new thread")
            return start(*args)

        def busy(preadv, *args):
            """Or one thread would do for all pieces."""
            enough.wait()
            return preadv(*args)

        with (
            small_thresholds(),
            preadv_replaced(busy),
            thread_starts_replaced(failing),
        ):
            self.check_serial_with_one_warning(
                "can't start new thread", num_workers=8
            )
        self.assertEqual(len(started), number)

    @parameterized.expand([(1,), (PAYLOAD_COUNT + 1,)])
    def test_no_memory_for_the_nth_payload(self, number):
        new_target, count = io_utils._new_target, []

        def failing(payload):
            count.append(payload)
            if len(count) == number:
                raise MemoryError
            return new_target(payload)

        with (
            small_thresholds(),
            mock.patch.object(io_utils, '_new_target', failing),
        ):
            self.check_serial_with_one_warning('no memory')

    def test_madvise_fails(self):
        calls = []

        def failing(*args):
            calls.append(args)
            return -1

        with (
            small_thresholds(),
            mock.patch.object(io_utils, '_MIN_HUGE_PAGE_PAYLOAD_BYTES', 1),
            mock.patch.object(io_utils, '_madvise', lambda: failing),
        ):
            self.check_parallel_without_a_word()
        self.assertEqual(len(calls), PAYLOAD_COUNT + 1)

    def test_no_madvise(self):
        with (
            small_thresholds(),
            mock.patch.object(io_utils, '_madvise', lambda: None),
        ):
            self.check_parallel_without_a_word()


class TestUnsuited(FaultCase):
    def check_serial_without_a_word(self, path=None, num_workers=2):
        with log_records() as records, attempts() as ends:
            value = self.unpickle(num_workers, path)
        self.assertEqual(fingerprint(value), self.expected)
        self.assertEqual(warnings_in(records), [])
        self.assertIsInstance(ends[0], io_utils._StreamUnsuited)
        self.assertEqual(len(records), 1)
        self.assertEqual(load_threads(), set())

    @parameterized.expand([(2,), (3,)])
    def test_protocol_without_frames(self, protocol):
        self.dump(self.value, protocol)
        self.expected = fingerprint(self.unpickle(1))
        with small_thresholds():
            self.check_serial_without_a_word()

    def test_too_few_bytes(self):
        self.check_serial_without_a_word()

    def test_no_preadv(self):
        preadv = os.preadv
        del os.preadv
        try:
            with small_thresholds():
                self.check_serial_without_a_word()
        finally:
            os.preadv = preadv

    def test_other_implementation(self):
        other = SimpleNamespace(name='other')
        with (
            small_thresholds(),
            mock.patch.object(io_utils.sys, 'implementation', other),
        ):
            self.check_serial_without_a_word()

    def test_unknown_unpickler(self):
        def serial_load(f, encoding):
            return pickle.load(f, encoding=encoding)

        with small_thresholds(), attempts() as ends, log_records() as records:
            value = self.unpickle(2, serial_load=serial_load)
        self.assertEqual(fingerprint(value), self.expected)
        self.assertEqual(warnings_in(records), [])
        self.assertIsInstance(ends[0], io_utils._StreamUnsuited)

    def test_other_functions_in_place_of_pickle_load(self):
        """Tools that check pickles before loading put themselves there."""
        paddle.save({'w': self.value['w0']}, self.path)
        loads, load = [], pickle.load

        def checked_load(f, **kwargs):
            loads.append(f)
            return load(f, **kwargs)

        with (
            small_thresholds(),
            mock.patch.object(pickle, 'load', checked_load),
        ):
            paddle.load(self.path, num_workers=2, return_numpy=True)
        self.assertEqual(len(loads), 1)

    def test_restricted_unpickler_is_used(self):
        """Trees with safe_load_pickle keep their restriction."""
        found = []

        class RestrictedUnpickler(pickle.Unpickler):
            def find_class(self, module, name):
                found.append((module, name))
                return super().find_class(module, name)

        def safe_load_pickle(f, encoding):
            raise AssertionError('expected no serial load')

        module = SimpleNamespace(RestrictedUnpickler=RestrictedUnpickler)
        safe_load_pickle.__module__ = 'restricted_for_a_test'
        with (
            small_thresholds(),
            mock.patch.dict('sys.modules', restricted_for_a_test=module),
        ):
            value = self.unpickle(2, serial_load=safe_load_pickle)
        self.assertEqual(fingerprint(value), self.expected)
        self.assertIn(('numpy', 'dtype'), found)

    def test_fifo(self):
        fifo = os.path.join(self.directory, 'fifo')
        os.mkfifo(fifo)
        with open(self.path, 'rb') as f:
            data = f.read()

        def feed():
            with open(fifo, 'wb') as f:
                f.write(data)

        feeder = threading.Thread(target=feed)
        feeder.start()
        self.addCleanup(feeder.join)
        with small_thresholds(), attempts() as ends, open(fifo, 'rb') as f:
            try:
                value = io_utils._load_pickle(pickle.load, fifo, f, 2)
            finally:
                f.read()  # or the feeder would not end
        self.assertEqual(fingerprint(value), self.expected)
        self.assertIsInstance(ends[0], io_utils._StreamUnsuited)


class LoadsAgain:
    """Loads another file while it is unpickled itself."""

    def __setstate__(self, state):
        self.__dict__ = state
        with open(self.path, 'rb') as f:
            self.inner = io_utils._load_pickle(pickle.load, self.path, f, 2)


class TestOtherFilesAndThreads(FaultCase):
    def test_load_inside_a_load(self):
        inner = self.path
        self.path = os.path.join(self.directory, 'outer.pdparams')
        objects = [LoadsAgain(), bytes(LARGE_BYTES), LoadsAgain()]
        for item in objects[0], objects[2]:
            item.path, item.data = inner, bytes(LARGE_BYTES)
        self.dump(objects)
        self.expected = fingerprint(self.unpickle(1))
        with small_thresholds(), attempts() as ends:
            value = self.unpickle(2)
        self.assertEqual(ends, [None] * 3)
        self.assertEqual(fingerprint(value), self.expected)

    def test_loads_in_many_threads(self):
        barrier = threading.Barrier(8)

        def load(_):
            barrier.wait()
            return fingerprint(self.unpickle(3))

        with (
            small_thresholds(),
            attempts() as ends,
            ThreadPoolExecutor(8) as pool,
        ):
            for found in pool.map(load, range(8)):
                self.assertEqual(found, self.expected)
        self.assertEqual(ends, [None] * 8)

    def replace_during_load(self, change):
        """Calls change() when the first piece has been planned."""
        once = threading.Lock()

        def stand_in(preadv, *args):
            if once.acquire(blocking=False):
                change()
            return preadv(*args)

        return preadv_replaced(stand_in)

    def test_file_is_replaced_during_the_load(self):
        def replace():
            other = os.path.join(self.directory, 'other')
            self.write(pickle.dumps(b'new' * LARGE_BYTES, 4), other)
            os.replace(other, self.path)

        with small_thresholds(), self.replace_during_load(replace):
            self.check_parallel_without_a_word()
        self.assertEqual(self.unpickle(1), b'new' * LARGE_BYTES)

    def test_file_is_truncated_during_the_load(self):
        def truncate():
            os.truncate(self.path, LARGE_BYTES + 1000)

        with (
            small_thresholds(),
            self.replace_during_load(truncate),
            self.assertRaises((EOFError, pickle.UnpicklingError)),
        ):
            self.unpickle(2)


if __name__ == '__main__':
    unittest.main()
