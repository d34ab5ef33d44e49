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

"""The n-th call of a function fails, for n = 1, 2, ... until none is left."""

import builtins
import contextlib
import errno
import gc
import itertools
import os
import sys
import threading
import time
import tracemalloc
from unittest import mock

from num_workers_case import (
    load_threads,
    log_records,
    open_descriptors,
    small_thresholds,
    warnings_in,
)
from paddle.framework import io_utils
from parameterized import parameterized

# More calls than any load here makes; a loop that gets so far does not end.
MOST_CALLS = 500


class NthCall:
    """A function of which the n-th call fails; if lasting, all from then on."""

    def __init__(self, call, number, fault, lasting=False):
        self.call, self.number, self.fault = call, number, fault
        self.lasting = lasting
        self.lock, self.count, self.fired = threading.Lock(), 0, False

    def __call__(self, *args, **options):
        with self.lock:
            self.count += 1
            fires = self.count == self.number or (
                self.lasting and self.count > self.number
            )
            self.fired |= fires
        if fires:
            return self.fault(self.call, *args, **options)
        return self.call(*args, **options)


# ---- what a call does that fails


def raising(kind, *args):
    def fault(*_, **__):
        raise kind(*args)  # a new one each time: errors hold frames

    return fault


def system_error(number):
    return raising(OSError, number, os.strerror(number))


def short_pread(pread, fd, length, offset):
    return pread(fd, max(1, length // 3), offset)


def short_preadv(preadv, fd, views, offset):
    return preadv(fd, [views[0][:1]], offset)


def no_bytes(*_):
    return b''


def no_count(*_):
    return 0


def refused(*_):
    return -1


READ_ERRORS = {
    name: system_error(getattr(errno, name))
    for name in ('EIO', 'ESTALE', 'EINTR', 'EAGAIN', 'ENOMEM')
}
NO_MEMORY = raising(MemoryError)
NO_THREAD = raising(RuntimeError, "can't start new thread")


# ---- where: each context manager puts a function's stand-in in its place


def attribute(owner, name):
    @contextlib.contextmanager
    def replaced(number, fault, lasting):
        nth = NthCall(getattr(owner, name), number, fault, lasting)
        with mock.patch.object(owner, name, nth):
            yield nth

    return replaced


@contextlib.contextmanager
def madvise(number, fault, lasting):
    nth = NthCall(io_utils._madvise(), number, fault, lasting)
    with (
        mock.patch.object(io_utils, '_MIN_HUGE_PAGE_PAYLOAD_BYTES', 1),
        mock.patch.object(io_utils, '_madvise', lambda: nth),
    ):
        yield nth


def python_api(kind, index):
    """A function of the interpreter that makes or finds an object's memory."""

    @contextlib.contextmanager
    def replaced(number, fault, lasting):
        functions = dict(io_utils._python_api())
        calls = list(functions[kind])
        nth = calls[index] = NthCall(calls[index], number, fault, lasting)
        functions[kind] = tuple(calls)
        with mock.patch.object(io_utils, '_python_api', lambda: functions):
            yield nth

    return replaced


@contextlib.contextmanager
def views(number, fault, lasting):
    functions = dict(io_utils._python_api())
    nth = NthCall(functions['view'], number, fault, lasting)
    functions['view'] = nth
    with mock.patch.object(io_utils, '_python_api', lambda: functions):
        yield nth


def queue_method(name):
    @contextlib.contextmanager
    def replaced(number, fault, lasting):
        original = getattr(io_utils.queue.SimpleQueue, name)
        nth = NthCall(original, number, fault, lasting)

        def method(self, *args, **options):
            return nth(self, *args, **options)

        kind = type('Arrivals', (io_utils.queue.SimpleQueue,), {name: method})
        with (
            mock.patch.object(io_utils.queue, 'SimpleQueue', kind),
            # What it does not hear of it looks for after so long.
            mock.patch.object(io_utils, '_MAX_THREAD_DELAY_S', 0.2),
        ):
            yield nth

    return replaced


POINTS = {
    'open': attribute(builtins, 'open'),
    'fstat': attribute(os, 'fstat'),
    'pread': attribute(os, 'pread'),
    'preadv': attribute(os, 'preadv'),
    'target': attribute(io_utils, '_new_target'),
    'bytes': python_api('bytes', 0),
    'address': python_api('bytes', 1),
    'bytearray': python_api('bytearray', 0),
    'view': views,
    'madvise': madvise,
    'thread': attribute(io_utils._thread, 'start_new_thread'),
    'put': queue_method('put'),
    'get': queue_method('get'),
    'exists': attribute(os.path, 'exists'),
    'sleep': attribute(time, 'sleep'),
}


@contextlib.contextmanager
def attempts_of(module, name):
    """Yields the list of how a function ended: None or an error's class.

    Not the error itself, which would hold the payloads.
    """
    ends, attempt = [], getattr(module, name)

    def recorded(*args):
        try:
            value = attempt(*args)
        except BaseException as error:
            ends.append(type(error))
            raise
        ends.append(None)
        return value

    with mock.patch.object(module, name, recorded):
        yield ends


class NthFaults:
    """To be mixed into a test case, which adds what is said here.

    Attributes:
        load (callable): (num_workers) -> the value.
        outcome (callable): (load, num_workers) -> its value or error, to be
            compared.
        expected: That of an undisturbed serial load.
        attempts (callable): -> a context manager as `attempts_of` is.
        unsuited (tuple[type]): An attempt's errors that no warning is due to.
        most_attempts (int): How often one load tries to read in parallel.
        points (dict): As POINTS.
        shared_points (set): Those that the serial load calls as well.
        piece_bytes (int): The most that one read brings.
        payload_bytes (int): What one load holds.
    """

    points = POINTS
    shared_points = frozenset({'open', 'stat', 'exists'})
    unsuited = (io_utils._StreamUnsuited,)
    most_attempts = 1

    @contextlib.contextmanager
    def warned(self):
        """Yields the list of warnings, complete afterwards."""
        messages = []
        with log_records() as records:
            yield messages
        messages += warnings_in(records)

    def start_watching(self):
        """Memory has to be given back without a search for cycles."""
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        self.descriptors = open_descriptors()

    def observed(self, num_workers):
        """One load: its outcome, how attempts ended, warnings, what is left."""
        with (
            small_thresholds(self.piece_bytes),
            self.attempts() as ends,
            self.warned() as warnings,
            mock.patch.object(sys, 'unraisablehook', lambda _: None),
        ):
            found = self.outcome(self.load, num_workers)
        self.assertEqual(load_threads(), set())
        self.assertEqual(open_descriptors(), self.descriptors)
        return found, ends, warnings

    def check_next_load(self):
        found, ends, warnings = self.observed(3)
        self.assertTrue(found == self.expected)
        self.assertEqual((ends, warnings), ([None], []))

    def check_fault(self, point, number, fault, lasting, harmless):
        """Whether there was an n-th call, which failed."""
        place = self.points[point]
        allowed = [self.expected]
        if point in self.shared_points:
            with place(number, fault, lasting):
                allowed.append(self.observed(1)[0])
        with place(number, fault, lasting) as nth:
            found, ends, warnings = self.observed(3)
        message = f'{point} {number}, {ends}, {warnings}'
        self.assertTrue(found in allowed, message)
        self.check_attempt(nth, ends, warnings, harmless, message)
        self.check_next_load()
        return nth.fired

    def check_attempt(self, nth, ends, warnings, harmless, message):
        faults = [
            end for end in ends if end is not None and end not in self.unsuited
        ]
        most = self.most_attempts if nth.lasting else 1
        self.assertLessEqual(len(faults), most, message)
        self.assertEqual(len(warnings), len(faults), message)
        if harmless is True or not nth.fired:
            self.assertIn(ends, ([], [None]), message)
        elif harmless is False:
            self.assertIsNotNone(ends[0], message)

    def check_until_none_fires(
        self, point, fault, lasting=False, harmless=False, least=1
    ):
        """Fail each call of a kind in turn.

        Args:
            point (str): A key of `points`.
            fault (callable): What it does instead, called with the function
                and its arguments.
            lasting (bool): Whether all later calls fail too.
            harmless (bool|None): Whether the parallel load goes on all the
                same. None: it may.
            least (int): How many calls there are, at least.
        """
        self.check_fault(point, 1, fault, lasting, harmless)  # fills caches
        before, _ = tracemalloc.get_traced_memory()
        for number in itertools.count(1):
            self.assertLess(number, MOST_CALLS)
            if not self.check_fault(point, number, fault, lasting, harmless):
                break
        self.assertGreater(number, least, f'calls of {point}')
        after, _ = tracemalloc.get_traced_memory()
        self.assertLess(after - before, self.payload_bytes)


class ThreadFaults:
    """Tests of the start of threads and of their results, with NthFaults."""

    @parameterized.expand([('RuntimeError', NO_THREAD), ('memory', NO_MEMORY)])
    def test_thread(self, name, fault):
        for lasting in False, True:
            self.check_until_none_fires(
                'thread', fault, lasting=lasting, least=3
            )

    def test_put(self):
        """A worker ends, others may do its work."""
        self.check_until_none_fires('put', NO_MEMORY, harmless=None)
