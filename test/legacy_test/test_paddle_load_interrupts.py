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

import contextlib
import functools
import itertools
import os
import pickle
import signal
import sys
import threading
import unittest
from unittest import mock

import num_workers_case
from num_workers_case import (
    LARGE_BYTES,
    NumWorkersCase,
    load_threads,
    log_records,
    preadv_replaced,
    small_thresholds,
    thread_starts_replaced,
    warnings_in,
)
from paddle.framework import io_utils
from parameterized import parameterized

READER = io_utils._ParallelPayloads
# Where the loading thread waits for the others.
WAITS = {READER._await_arrival.__code__, READER.__exit__.__code__}


def stack_of(thread_id):
    """The code that a thread is in."""
    codes, frame = set(), sys._current_frames()[thread_id]
    while frame is not None:
        codes.add(frame.f_code)
        frame = frame.f_back
    return codes


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

    def __init__(self, reads, times, workers, when_all_read):
        super().__init__()
        self.when_all_read = when_all_read
        self.reads, self.times, self.workers = reads, times, workers
        self.main = threading.get_ident()
        self.handled = 0
        self.load_is_out = threading.Event()

    def handle(self, signal_number, frame):
        self.handled += 1
        raise KeyboardInterrupt(f'number {self.handled}')

    def await_wait(self):
        """Until the main thread waits; once interrupted, on its way out."""
        waits = {READER.__exit__.__code__} if self.handled else WAITS
        while not self.load_is_out.is_set():
            if waits & stack_of(self.main):
                return
            os.sched_yield()

    def run(self):
        try:
            for _ in range(self.workers):
                self.reads.begun.acquire()
            self.when_all_read()
            for count in range(1, self.times + 1):
                self.await_wait()
                if self.load_is_out.is_set():
                    return
                signal.pthread_kill(self.main, signal.SIGINT)
                while self.handled < count:
                    os.sched_yield()
            self.await_wait()
        finally:
            self.reads.release.set()


class InterruptCase(NumWorkersCase):
    def setUp(self):
        super().setUp()
        self.dump([bytes(LARGE_BYTES) for _ in range(6)])
        self.serial_loads = []
        patch = mock.patch.object(
            io_utils, '_unpickler_behind', lambda _: pickle.Unpickler
        )
        patch.start()
        self.addCleanup(patch.stop)

    def serial_load(self, f, encoding):
        self.serial_loads.append(f)
        return pickle.load(f, encoding=encoding)


class TestCtrlC(InterruptCase):
    def interrupt(self, times, workers, when_all_read=lambda: None):
        """The count of workers that still read when the load was left."""
        reads = StuckReads()
        interrupter = Interrupter(reads, times, workers, when_all_read)
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

    @parameterized.expand([(1, 3), (2, 2), (4, 2), (20, 3)])
    def test_as_often_as(self, times, workers):
        self.assertEqual(self.interrupt(times, workers), 0)
        self.assertEqual(load_threads(), set())

    def test_reads_longer_than_a_thread_needs_to_end(self):
        short = mock.patch.object(io_utils, '_MAX_THREAD_DELAY_S', 0)
        try:
            self.assertEqual(self.interrupt(1, 3, short.start), 0)
        finally:
            short.stop()
        while load_threads():  # for their ends there was no time
            os.sched_yield()

    def test_next_load_is_parallel_again(self):
        self.interrupt(1, workers=2)
        with small_thresholds():
            expected, ends = self.check_same_unpickled()
        self.assertEqual(expected[0], 'value')
        self.assertEqual(ends, [None])

    def test_while_an_object_is_unpickled(self):
        self.dump([bytes(LARGE_BYTES), Interrupts(), bytes(LARGE_BYTES)])
        with small_thresholds(), self.assertRaises(KeyboardInterrupt):
            self.unpickle(2, serial_load=self.serial_load)
        self.assertEqual(load_threads(), set())
        self.assertEqual(self.serial_loads, [])


def interrupt():
    raise KeyboardInterrupt


class Interrupts:
    def __reduce__(self):
        return interrupt, ()


class NthInstruction:
    """Raises KeyboardInterrupt before the n-th instruction of the reader.

    A signal's handler is called between two instructions, or as a call begins;
    so these are all the places where Ctrl-C can meet the loading thread.
    """

    def __init__(self, number):
        self.left = number
        self.where = None

    def trace(self, frame, event, _):
        if frame.f_code.co_filename != io_utils.__file__:
            return None
        if frame.f_code.co_name not in ('take', 'start') and (
            frame.f_code not in WAITS
        ):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event in ('call', 'opcode'):
            self.left -= 1
            if not self.left:
                self.where = f'{frame.f_code.co_name}:{frame.f_lineno}'
                raise KeyboardInterrupt(self.where)
        return self.trace


@contextlib.contextmanager
def traced(trace):
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


class TestEveryInstruction(InterruptCase):
    def slow_reads(self, in_flight):
        """Reads that are under way for some time after an interrupt."""

        def stand_in(preadv, *args):
            in_flight.append(None)
            for _ in range(50):
                os.sched_yield()
            try:
                return preadv(*args)
            finally:
                in_flight.pop()

        return preadv_replaced(stand_in)

    def test_ctrl_c(self):
        """At each of them the load ends, and so has all that it began."""
        places, left_reading, not_reached = set(), [], 0
        for number in itertools.count(1):
            nth, in_flight = NthInstruction(number), []
            with small_thresholds(50_000), self.slow_reads(in_flight):
                try:
                    with traced(nth.trace):
                        self.unpickle(2, serial_load=self.serial_load)
                except KeyboardInterrupt as error:
                    self.assertEqual(str(error), nth.where)
                else:  # the number of instructions differs a little
                    self.assertIsNone(nth.where)
                    not_reached += 1
                    if not_reached == 50:
                        break
                    continue
            left_reading += [nth.where for _ in in_flight]
            self.assertEqual(load_threads(), set(), nth.where)
            places.add(nth.where.partition(':')[0])
        self.assertEqual(left_reading, [])
        self.assertEqual(self.serial_loads, [])
        self.assertEqual(
            places, {'start', 'take', '_await_arrival', '__exit__'}
        )


class Deadline(ValueError):
    """Of a class that damaged files raise too."""


class CallableHandler:
    def __call__(self, *args):
        raise Deadline('an object')

    def method(self, *args):
        raise Deadline('a method')


def handler(*args):
    raise Deadline('a function')


HANDLERS = (
    (handler,),
    (CallableHandler(),),
    (CallableHandler().method,),
    (functools.partial(handler, 1),),
)


class TestOtherSignals(InterruptCase):
    """What a handler raises comes out, whatever it is and wherever it struck."""

    def install(self, handler):
        old = signal.signal(signal.SIGALRM, handler)
        self.addCleanup(signal.signal, signal.SIGALRM, old)

    def check_comes_out(self, owner, name):
        """The alarm goes off in every single call of a function, in turn."""
        call = getattr(owner, name)
        for number in itertools.count(1):
            countdown = iter(range(number))

            def stand_in(*args, countdown=countdown, last=number - 1):
                if next(countdown, None) == last:
                    signal.raise_signal(signal.SIGALRM)
                return call(*args)

            with (
                self.subTest(number),
                small_thresholds(),
                mock.patch.object(owner, name, stand_in),
                log_records() as records,
            ):
                try:
                    self.unpickle(2, serial_load=self.serial_load)
                except Deadline:
                    pass
                else:
                    break
            self.assertEqual(warnings_in(records), [])
            self.assertEqual(load_threads(), set())
        self.assertGreater(number, 1)
        self.assertEqual(self.serial_loads, [])

    @parameterized.expand(HANDLERS)
    def test_in_reads_of_opcodes(self, handler):
        self.install(handler)
        self.check_comes_out(os, 'pread')

    @parameterized.expand([('take',), ('start',), ('__exit__',)])
    def test_in_the_reader(self, name):
        self.install(handler)
        self.check_comes_out(READER, name)

    def test_while_threads_are_started(self):
        """Of the class that a thread which cannot be started raises."""

        def unlucky(*args):
            raise RuntimeError('alarm')

        def alarmed(start, *args):
            signal.raise_signal(signal.SIGALRM)
            return start(*args)

        self.install(unlucky)
        with (
            small_thresholds(),
            thread_starts_replaced(alarmed),
            self.assertRaisesRegex(RuntimeError, '^alarm$'),
        ):
            self.unpickle(2, serial_load=self.serial_load)
        self.assertEqual(self.serial_loads, [])

    def test_error_that_was_handled_before(self):
        """One that an earlier load ended by is not raised again."""
        self.install(handler)
        self.dump([Fails(), bytes(LARGE_BYTES)])
        try:
            signal.raise_signal(signal.SIGALRM)
        except Deadline:
            with small_thresholds(), self.assertRaisesRegex(ValueError, 'file'):
                self.unpickle(2)


def fail():
    raise ValueError('of the file')


class Fails:
    def __reduce__(self):
        return fail, ()


class TestThreads(InterruptCase):
    @parameterized.expand([(1,), (2,), (4,)])
    def test_interrupted_start(self, number):
        """The thread runs already; all are waited for."""
        started, reads = [], StuckReads()

        def release():
            main = threading.main_thread().ident
            while READER.__exit__.__code__ not in stack_of(main):
                os.sched_yield()
            reads.release.set()

        releaser = threading.Thread(target=release)

        def interrupted(start, *args):
            started.append(start(*args))
            if len(started) == number:
                for _ in started:  # all are reading
                    reads.begun.acquire()
                releaser.start()
                raise KeyboardInterrupt
            return started[-1]

        with (
            small_thresholds(),
            preadv_replaced(reads),
            thread_starts_replaced(interrupted),
            self.assertRaises(KeyboardInterrupt),
        ):
            self.unpickle(8, serial_load=self.serial_load)
        self.assertEqual(reads.running, 0)
        self.assertEqual(self.serial_loads, [])
        releaser.join()

    def test_thread_that_begins_late(self):
        """It finds the load closed and reads nothing."""
        late, reads = [], StuckReads()
        reads.release.set()

        def postponed(start, *args):
            late.append(args)
            return len(late)

        with (
            small_thresholds(),
            mock.patch.object(io_utils, '_MAX_THREAD_DELAY_S', 0.001),
            mock.patch.object(num_workers_case, '_load_threads', set()),
            preadv_replaced(reads),
            thread_starts_replaced(postponed),
        ):
            value = self.unpickle(2, serial_load=self.serial_load)
            for function, args in late:
                function(*args)
        self.assertEqual(value, [bytes(LARGE_BYTES)] * 6)
        self.assertEqual(len(self.serial_loads), 1)
        self.assertEqual(len(late), 2)
        self.assertEqual(reads.count, 0)

    def test_thread_that_ends_early(self):
        """It has no memory for the news of what it read."""
        ended, gets = threading.Semaphore(0), []

        class Arrivals:
            def put(self, piece):
                raise MemoryError

            def get(self, timeout):
                if not gets:
                    for _ in range(2):
                        ended.acquire()
                gets.append(timeout)
                raise io_utils.queue.Empty

        with (
            small_thresholds(),
            mock.patch.object(io_utils.queue, 'SimpleQueue', Arrivals),
            mock.patch.object(sys, 'unraisablehook', lambda _: ended.release()),
        ):
            value = self.unpickle(2, serial_load=self.serial_load)
        self.assertEqual(value, [bytes(LARGE_BYTES)] * 6)
        self.assertEqual(len(self.serial_loads), 1)
        self.assertGreater(len(gets), 0)


if __name__ == '__main__':
    unittest.main()
