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

"""Every single call below a parallel load fails once: value or serial error."""

import json
import os
import unittest
from unittest import mock

import numpy as np
import paddle
from nth_fault_case import (
    NO_MEMORY,
    READ_ERRORS,
    NthFaults,
    ThreadFaults,
    attempts_of,
    no_bytes,
    no_count,
    raising,
    refused,
    short_pread,
    short_preadv,
    system_error,
)
from num_workers_case import (
    LARGE_BYTES,
    NumWorkersCase,
    log_records,
    outcome,
    small_thresholds,
)
from paddle.framework import io_utils
from parameterized import parameterized
from pressure_case import resident_bytes, run_script
from sanitizer_case import is_sanitized

ERRORS = [(name, fault) for name, fault in READ_ERRORS.items()]


class NthFaultCase(NthFaults, NumWorkersCase):
    piece_bytes = 30_000
    payload_bytes = 4 * LARGE_BYTES
    outcome = staticmethod(outcome)

    def setUp(self):
        super().setUp()
        arrays = [np.arange(n, n + LARGE_BYTES // 8) for n in range(4)]
        for array in arrays[:3]:  # stored as bytes, the last as a bytearray
            array.setflags(write=False)
        names = {f'w{n}': array for n, array in enumerate(arrays)}
        self.dump({**names, 'note': 'text'}, 5)
        self.expected = outcome(self.load, 1)
        self.assertEqual(self.expected[0], 'value', self.expected)
        self.start_watching()

    def load(self, num_workers):
        return paddle.load(
            self.path, return_numpy=True, num_workers=num_workers
        )

    def attempts(self):
        return attempts_of(io_utils, '_load_pickle_in_parallel')


class TestReads(NthFaultCase):
    @parameterized.expand(ERRORS)
    def test_preadv(self, name, fault):
        self.check_until_none_fires('preadv', fault, least=7)

    @parameterized.expand(ERRORS)
    def test_pread(self, name, fault):
        self.check_until_none_fires('pread', fault, least=5)

    @parameterized.expand(ERRORS)
    def test_fstat(self, name, fault):
        self.check_until_none_fires('fstat', fault)

    @parameterized.expand([*ERRORS, ('EMFILE', system_error(24))])
    def test_open(self, name, fault):
        self.check_until_none_fires('open', fault, harmless=None)

    @parameterized.expand(
        [('open', None), ('fstat', False), ('pread', False), ('preadv', False)]
    )
    def test_all_from_then_on(self, point, harmless):
        self.check_until_none_fires(
            point, READ_ERRORS['EIO'], lasting=True, harmless=harmless
        )

    @parameterized.expand(
        [('pread', short_pread, True), ('preadv', short_preadv, True),
         ('pread', no_bytes, None), ('preadv', no_count, None)]
    )  # fmt: skip
    def test_fewer_bytes(self, point, fault, harmless):
        self.check_until_none_fires(point, fault, harmless=harmless, least=5)
        if harmless is not True:
            self.check_until_none_fires(
                point, fault, lasting=True, harmless=harmless, least=5
            )


class TestMemoryAndThreads(ThreadFaults, NthFaultCase):
    @parameterized.expand(
        [('target', 4), ('bytes', 3), ('address', 3), ('bytearray', 1),
         ('view', 7)]
    )  # fmt: skip
    def test_memory(self, point, least):
        for lasting in False, True:
            self.check_until_none_fires(
                point, NO_MEMORY, lasting=lasting, least=least
            )

    def test_madvise(self):
        self.check_until_none_fires(
            'madvise', refused, lasting=True, harmless=True, least=4
        )

    def test_get(self):
        """How often the main thread waits is chance."""
        self.check_fault('get', 1, NO_MEMORY, False, None)
        self.check_fault('get', 1, NO_MEMORY, True, None)

    @parameterized.expand([('exists',), ('sleep',)])
    def test_waiting_for_threads_to_end(self, point):
        for number in range(1, 5):
            self.check_fault(point, number, NO_MEMORY, False, None)

    def test_interrupted_sleep(self):
        self.check_fault('sleep', 1, raising(InterruptedError), False, None)


class TestManyFaults(NumWorkersCase):
    REPEATS = 200
    PAYLOAD_BYTES = 1 << 20

    @unittest.skipIf(is_sanitized(), 'a sanitizer keeps freed memory')
    def test_resident_memory(self):
        """What leaks a payload in each load is found; less is for others."""
        self.dump([bytes(self.PAYLOAD_BYTES) for _ in range(4)])
        preadv, numbers = os.preadv, iter(range(10**6))

        def failing(*args):
            if next(numbers) % 5 == 4:
                raise OSError(5, 'Input/output error')
            return preadv(*args)

        def repeat(times):
            for _ in range(times):
                with log_records():
                    self.unpickle(2)

        logger = mock.patch.object(io_utils._logger, 'handlers', [])
        with (
            small_thresholds(300_000),
            mock.patch.object(os, 'preadv', failing),
            logger,
        ):
            repeat(20)
            before = resident_bytes()
            repeat(self.REPEATS)
            grown = resident_bytes() - before
        self.assertLess(grown, self.REPEATS * self.PAYLOAD_BYTES // 4)


# Each allocation of the interpreter fails in turn, whichever thread makes it.
NO_MEMORY_SCRIPT = '''
import gc
import json
import logging
import os
import pickle
import sys

import _testcapi
import num_workers_case
from paddle.framework import io_utils

path, num_workers = sys.argv[1], int(sys.argv[2])
warnings, threads_left, ends, wrong = [], [], {}, []
handler = logging.Handler()
handler.emit = warnings.append
io_utils._logger.handlers[:] = [handler]
io_utils._logger.propagate = False
sys.unraisablehook = lambda _: None


def load():
    with open(path, 'rb') as f:
        return io_utils._load_pickle(pickle.load, path, f, num_workers)


def load_without_the_nth(number):
    try:
        _testcapi.set_nomemory(number, number + 1)
        try:
            return load()
        finally:
            _testcapi.remove_mem_hooks()
    except Exception as error:
        return type(error).__name__


with (
    num_workers_case.small_thresholds(40_000),
    num_workers_case.record_load_threads(),
    num_workers_case.mock.patch.object(io_utils, '_MAX_THREAD_DELAY_S', 0.2),
):
    expected = load()
    descriptors = num_workers_case.open_descriptors()
    number = unharmed = 0
    # How many allocations there are differs a little between loads.
    while unharmed < 50:
        warnings.clear()
        value = load_without_the_nth(number)
        end = value if type(value) is str else 'value'
        if end == 'value' and value != expected or len(warnings) > 1:
            wrong.append(number)
        # A thread without memory for its own number cannot be waited for.
        for _ in range(1000):
            if not num_workers_case.load_threads():
                break
            os.sched_yield()
        else:
            threads_left.append(number)
        ends[end] = ends.get(end, 0) + 1
        harmed = end != 'value' or warnings
        unharmed = 0 if harmed else unharmed + 1
        number += 1
    gc.collect()
    json.dump({
        'ends': ends,
        'wrong': wrong,
        'threads_left': threads_left,
        'next': load() == expected and not warnings,
        'descriptors': num_workers_case.open_descriptors() == descriptors,
    }, sys.stdout)
'''


class TestEveryAllocation(NumWorkersCase):
    def test_one_fails(self):
        try:
            import _testcapi  # noqa: F401
        except ImportError:
            self.skipTest('this Python was built without _testcapi')
        self.dump([bytes(LARGE_BYTES), 'text', bytearray(LARGE_BYTES)], 5)
        found = {
            num_workers: json.loads(
                run_script(NO_MEMORY_SCRIPT, self.path, num_workers)
            )
            for num_workers in (1, 3)
        }
        failures = {}
        for num_workers, report in found.items():
            ends = report.pop('ends')
            self.assertEqual(
                report,
                {
                    'wrong': [],
                    'threads_left': [],
                    'next': True,
                    'descriptors': True,
                },
                f'num_workers={num_workers}, {ends}',
            )
            self.assertGreater(ends.pop('value'), 50)
            # io's lock of a buffered file.
            self.assertLessEqual(ends.keys(), {'MemoryError', 'RuntimeError'})
            failures[num_workers] = sum(ends.values())
        # Only opening the file is not done again by the serial load.
        self.assertLess(failures[3], failures[1])


if __name__ == '__main__':
    unittest.main()
