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

"""The sanitizer finds what a faulty reader does; and what it cannot see is seen."""

import json
import os
import signal
import unittest
from unittest import mock

import sanitizer_case
from num_workers_case import (
    LARGE_BYTES,
    NumWorkersCase,
    fingerprint,
    small_thresholds,
)
from paddle.framework import io_utils
from parameterized import parameterized
from pressure_case import run_script
from sanitizer_case import BEYOND, FREED, SanitizerMissing

# Bytes that a fault reads too many. A bytes object and a bytearray have one
# more than they say, a zero.
BEYOND_BYTES = {'bytes': 2, 'bytearray': 2, 'array': 1, 'tensor': 1}

# One thread reads two payloads at once, rightly or with a fault in the first.
# The second would be too little: the thread holds the last one's memory.
SCRIPT = '''
import contextlib
import faulthandler
import json
import os
import re
import sys
import threading

import num_workers_case
import numpy as np
import paddle
import sanitizer_case
from paddle.framework import io_utils

path, reports, steps = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
LENGTH_BYTES = num_workers_case.LARGE_BYTES
assert sanitizer_case.is_sanitized()


def payload(kind, offset, length_bytes=LENGTH_BYTES):
    return io_utils._Payload(
        offset, offset + 9, length_bytes, kind == 'bytearray'
    )


def target(kind):
    """Memory to read into, of the kinds that loads read into."""
    if kind == 'array':
        value = np.empty(LENGTH_BYTES, 'u1')
        return value, value.ctypes.data
    if kind == 'tensor':
        value = paddle.empty([LENGTH_BYTES], 'uint8')
        return value, value.data_ptr()
    return io_utils._new_target(payload(kind, 0))


class LeavesEarly(io_utils._ParallelPayloads):
    def __exit__(self, *exc_info):
        self._targets.clear()


def read(kind, more_bytes, leaves_early):
    reading, go_on, done = (threading.Event() for _ in range(3))

    def stand_in(preadv, *args):
        reading.set()
        go_on.wait()
        try:
            return preadv(*args)
        finally:
            done.set()

    reader_class = LeavesEarly if leaves_early else io_utils._ParallelPayloads
    if not leaves_early:
        go_on.set()
    payloads = [
        payload(kind, 0, LENGTH_BYTES + more_bytes),
        payload(kind, LENGTH_BYTES + 100),
    ]
    targets = [target(kind) for _ in payloads]
    with (
        open(path, 'rb', buffering=0) as f,
        num_workers_case.record_load_threads(),
        num_workers_case.preadv_replaced(stand_in),
    ):
        reader = reader_class(f.fileno(), payloads, 1, targets)
        with reader, reader:
            reader.start()
            reading.wait()
        go_on.set()
        done.wait()


def end_of(step):
    """How a copy of this process ends that reads, and what was reported."""
    pid = os.fork()
    if not pid:
        faulthandler.disable()
        with contextlib.suppress(Exception):
            read(*step)
            os._exit(0)
        os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    found = []
    with contextlib.suppress(FileNotFoundError):
        with open(f'{reports}.{pid}') as f:
            found = re.findall(
                r'ERROR: AddressSanitizer: (\\S+).*? in __interceptor_preadv64 ',
                f.read(),
                re.DOTALL,
            )
    return [status, *found]


json.dump([end_of(step) for step in steps], sys.stdout)
'''


class TestFaultsAreFound(NumWorkersCase):
    def setUp(self):
        super().setUp()
        try:
            self.environment = sanitizer_case.sanitizer_environment(
                self.directory
            )
        except SanitizerMissing as reason:
            self.skipTest(str(reason))
        self.write(bytes(3 * LARGE_BYTES))

    def test_in_all_kinds_of_memory(self):
        steps, expected = [], []
        for kind, more_bytes in BEYOND_BYTES.items():
            steps += (
                [kind, 0, False],
                [kind, more_bytes, False],
                [kind, 0, True],
            )
            expected += [0], [-signal.SIGABRT, BEYOND], [-signal.SIGABRT, FREED]
        reports = os.path.join(self.directory, 'report')
        self.environment['ASAN_OPTIONS'] += f':log_path={reports}'
        found = json.loads(
            run_script(
                SCRIPT,
                *(self.path, reports, json.dumps(steps)),
                **self.environment,
            )
        )
        self.assertEqual(found, expected)


class TestByteBehind(NumWorkersCase):
    """What belongs to an object, and is no place for a file's bytes."""

    @parameterized.expand([(bytes,), (bytearray,)])
    def test_found(self, kind):
        self.dump([kind(LARGE_BYTES), None], 5)
        with small_thresholds():
            expected = fingerprint(self.unpickle(2))
        view_of = io_utils._python_api()['view']

        def longer(address, length_bytes, flags):
            return view_of(address, length_bytes + 1, flags)

        functions = {**io_utils._python_api(), 'view': longer}
        with (
            small_thresholds(LARGE_BYTES),
            mock.patch.object(io_utils, '_python_api', lambda: functions),
        ):
            found = fingerprint(self.unpickle(2))
        self.assertNotEqual(found, expected)


class TestEnvironment(NumWorkersCase):
    """Where there is no sanitizer, it is said why."""

    def stand_in_for_gcc(self, text):
        folder = os.path.join(self.directory, 'bin')
        os.mkdir(folder)
        path = self.write(
            f'#!/bin/sh\n{text}\n'.encode(), os.path.join(folder, 'gcc')
        )
        os.chmod(path, 0o755)
        return mock.patch.dict(os.environ, PATH=f'{folder}:/bin:/usr/bin')

    def check_missing(self, reason):
        with self.assertRaisesRegex(SanitizerMissing, reason):
            sanitizer_case.sanitizer_environment(self.directory)

    def test_no_compiler(self):
        with mock.patch.dict(os.environ, PATH=self.directory):
            self.check_missing('^gcc: ')

    def test_no_runtime(self):
        with self.stand_in_for_gcc('echo libasan.so'):
            self.check_missing('libasan.so')

    def test_compiler_fails(self):
        with self.stand_in_for_gcc(
            'case $1 in -print*) echo /lib/libasan.so;; '
            '*) echo it is broken >&2; exit 1;; esac'
        ):
            self.check_missing('status 0, but received 1: it is broken')

    def test_runtime_of_another_kind(self):
        """What cannot be preloaded is left out with no more than a message."""
        path = self.write(b'INPUT(libasan.so)', f'{self.directory}/libasan.so')
        with self.stand_in_for_gcc(f'echo {path}'):
            self.check_missing('it cannot be preloaded')


if __name__ == '__main__':
    unittest.main()
