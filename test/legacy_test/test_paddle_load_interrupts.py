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

"""Ctrl-C while paddle.load(num_workers=...) reads."""

import os
import pickle
import signal
import sys
import threading
import unittest
from unittest import mock

from num_workers_case import (
    LARGE_BYTES,
    NumWorkersCase,
    load_threads,
    preadv_replaced,
    small_thresholds,
)
from paddle.framework import io_utils
from parameterized import parameterized

# Where CPython's own code waits for a future, a condition or a thread.
# Repeated Ctrl-C can meet the locks of concurrent.futures at a bad moment, and
# then a worker is waited for in vain; seldom, and more often on a busy machine.
STRESS = os.environ.get('PADDLE_LOAD_STRESS') == '1'

WAITS = {'wait', 'join', '_wait_for_tstate_lock', '_await_idle'}


def stack_of(thread_id):
    """The names of the functions that a thread is in."""
    names, frame = set(), sys._current_frames()[thread_id]
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


class StuckReads:
    """A preadv that lets nothing through until it is told to."""

    def __init__(self):
        self.release = threading.Event()
        self.begun = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.running = self.count = 0

    def __call__(self, preadv, *args):
        with self.lock:
            self.running += 1
            self.count += 1
        self.begun.release()
        self.release.wait()
        try:
            return preadv(*args)
        finally:
            with self.lock:
                self.running -= 1


class Interrupter(threading.Thread):
    """Presses Ctrl-C, as often as told, whenever the main thread waits."""

    def __init__(self, reads, times, workers):
        super().__init__()
        self.reads, self.times, self.workers = reads, times, workers
        self.main = threading.get_ident()
        self.handled = 0
        self.waits_seen = set()
        self.load_is_out = threading.Event()

    def handle(self, signal_number, frame):
        self.handled += 1
        raise KeyboardInterrupt(f'number {self.handled}')

    def await_new_wait(self):
        """Until the main thread waits for the workers, in a new call."""
        while not self.load_is_out.is_set():
            names = stack_of(self.main)
            place = self.handled, '_drain' in names
            if self.handled:
                waits = '_drain' in names
            else:  # all threads have been started
                waits = '__enter__' not in names
            if names & WAITS and waits and place not in self.waits_seen:
                self.waits_seen.add(place)
                return
            os.sched_yield()

    def run(self):
        try:
            for _ in range(self.workers):
                self.reads.begun.acquire()
            for count in range(1, self.times + 1):
                self.await_new_wait()
                if self.load_is_out.is_set():
                    return
                signal.pthread_kill(self.main, signal.SIGINT)
                while self.handled < count:
                    os.sched_yield()
            self.await_new_wait()
        finally:
            self.reads.release.set()


class TestCtrlC(NumWorkersCase):
    def setUp(self):
        super().setUp()
        self.dump([bytes(LARGE_BYTES) for _ in range(6)])
        self.serial_loads = []
        self.load_is_out = threading.Event()
        patch = mock.patch.object(
            io_utils, '_unpickler_behind', lambda _: pickle.Unpickler
        )
        patch.start()
        self.addCleanup(patch.stop)

    def serial_load(self, f, encoding):
        self.serial_loads.append(f)
        return pickle.load(f, encoding=encoding)

    def interrupt(self, times, workers):
        """The count of workers that still read when the load was left."""
        reads = StuckReads()
        interrupter = Interrupter(reads, times, workers)
        old = signal.signal(signal.SIGINT, interrupter.handle)
        self.addCleanup(signal.signal, signal.SIGINT, old)
        interrupter.start()
        try:
            with (
                small_thresholds(piece_bytes=20_000),
                preadv_replaced(reads),
                self.assertRaises(KeyboardInterrupt),
            ):
                self.unpickle(workers, serial_load=self.serial_load)
            running = reads.running
        finally:
            interrupter.load_is_out.set()
            interrupter.join()
        self.assertEqual(interrupter.handled, times)
        self.assertEqual(reads.count, workers)  # the others were cancelled
        self.assertEqual(self.serial_loads, [])
        return running

    def test_once(self):
        self.assertEqual(self.interrupt(1, workers=3), 0)
        self.assertEqual(load_threads(), [])

    @unittest.skipUnless(STRESS, 'repeated Ctrl-C: set PADDLE_LOAD_STRESS=1')
    def test_again_while_the_workers_finish(self):
        self.assertEqual(self.interrupt(2, workers=2), 0)
        self.assertEqual(load_threads(), [])

    @unittest.skipUnless(STRESS, 'repeated Ctrl-C: set PADDLE_LOAD_STRESS=1')
    def test_once_for_each_worker_and_once_more(self):
        """An interrupted Thread.join() takes a running thread for ended."""
        self.assertEqual(self.interrupt(4, workers=2), 0)
        self.assertEqual(load_threads(), [])

    def test_thread_that_the_pool_does_not_know(self):
        """One that Ctrl-C met while it was being started."""
        may_end = threading.Event()
        with open(self.path, 'rb') as f:
            payloads = [io_utils._Payload(0, 0, 1000, False)]
            reader = io_utils._ParallelPayloads(f.fileno(), payloads, 1)
            unknown = threading.Thread(
                target=may_end.wait, name=f'{reader._thread_name}_1'
            )
            unknown.start()

            def end(_):
                may_end.set()
                unknown.join()

            self.addCleanup(end, None)
            with mock.patch.object(io_utils.time, 'sleep', end), reader:
                reader.take()
        self.assertFalse(unknown.is_alive())

    def test_next_load_is_parallel_again(self):
        self.interrupt(1, workers=2)
        with small_thresholds():
            expected, ends = self.check_same_unpickled()
        self.assertEqual(expected[0], 'value')
        self.assertEqual(ends, [None])

    @parameterized.expand([(1,), (2,), (4,)])
    def test_at_the_start_of_a_thread(self, number):
        """The thread runs, but the pool has not heard of it yet."""
        start = threading.Thread.start
        started, reads = [], StuckReads()

        def interrupted(thread):
            start(thread)
            started.append(thread)
            if len(started) == number:
                for _ in started:  # all are reading
                    reads.begun.acquire()
                releaser = threading.Thread(target=self.release, args=(reads,))
                self.addCleanup(releaser.join)
                start(releaser)
                raise KeyboardInterrupt

        with (
            small_thresholds(),
            preadv_replaced(reads),
            mock.patch.object(threading.Thread, 'start', interrupted),
            self.assertRaises(KeyboardInterrupt),
        ):
            self.unpickle(8, serial_load=self.serial_load)
        running = reads.running
        self.load_is_out.set()
        for thread in started:
            thread.join()
        self.assertEqual(running, 0)
        self.assertEqual(self.serial_loads, [])

    def release(self, reads):
        """When the load waits for its workers, or too late."""
        main = threading.main_thread().ident
        while not self.load_is_out.is_set():
            names = stack_of(main)
            if '_drain' in names and names & WAITS:
                break
            os.sched_yield()
        reads.release.set()

    def test_while_an_object_is_unpickled(self):
        self.dump([bytes(LARGE_BYTES), Interrupts(), bytes(LARGE_BYTES)])
        with small_thresholds(), self.assertRaises(KeyboardInterrupt):
            self.unpickle(2, serial_load=self.serial_load)
        self.assertEqual(load_threads(), [])
        self.assertEqual(self.serial_loads, [])


def interrupt():
    raise KeyboardInterrupt


class Interrupts:
    def __reduce__(self):
        return interrupt, ()


if __name__ == '__main__':
    unittest.main()
