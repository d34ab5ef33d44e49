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

"""Ctrl-C at random moments of loads, with an allocator that looks for misuse.

A process of its own, for what it does wrong may end it.
"""

import json
import random
import unittest

from num_workers_case import LARGE_BYTES, NumWorkersCase
from pressure_case import run_script

SEED = 20261130
TIMES = 200

SCRIPT = '''
import collections
import json
import os
import pickle
import random
import signal
import sys
import threading
import time

import num_workers_case
from paddle.framework import io_utils

path, seed, times = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
counts, wrong = collections.Counter(), []
reading, late, pressed, unraisable = set(), [], [], []
is_open = False


def slow_preadv(preadv, fd, views, offset):
    """Waits before and behind the system call, and writes down what it does."""
    me = threading.get_native_id()
    reading.add(me)
    if not is_open:
        late.append(offset)
    time.sleep(0.0002)
    count = preadv(fd, views, offset)
    time.sleep(0.0001)
    if not is_open:
        late.append(offset)
    reading.discard(me)
    return count


def press(*_):
    """What Ctrl-C is to the interpreter, at a moment that a timer chose."""
    if is_open:
        pressed.append(True)
        signal.raise_signal(signal.SIGINT)


def load():
    with open(path, 'rb') as f:
        return io_utils._load_pickle(pickle.load, path, f, 3)


class Filled:
    """Memory of ours that a reader fills, as that of Tensors is filled."""

    def __init__(self, payloads):
        self.payloads = payloads
        self.targets = []
        for payload in payloads:
            value = bytearray(payload.length_bytes)
            address = io_utils._python_api()['bytearray'][1](value)
            self.targets.append((value, address))
        self.values = [value for value, _ in self.targets]

    def load(self):
        with open(path, 'rb', buffering=0) as f:
            reader = io_utils._ParallelPayloads(
                f.fileno(), self.payloads, 3, self.targets
            )
            with reader, reader:
                reader.start()
                return [reader.take() for _ in self.payloads]

    def mark(self):
        """Write what only a late read would change."""
        for value in self.values:
            value[:] = bytes([0xA5]) * len(value)

    def is_marked(self):
        return all(v.count(0xA5) == len(v) for v in self.values)


def interrupted(call, delay_s):
    """Whether Ctrl-C ended a call; a signal behind its end is not for it."""
    global is_open
    pressed.clear()
    try:
        try:
            is_open = True
            signal.setitimer(signal.ITIMER_REAL, delay_s)
            call()
        finally:
            is_open = False
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        is_open = False
        return True
    return False


def check(number, name, call, delay_s):
    ended = interrupted(call, delay_s)
    counts[name, ended] += 1
    if ended != bool(pressed):
        wrong.append([number, f'interrupted: {ended}, pressed: {pressed}'])
    if reading or num_workers_case.load_threads():
        wrong.append([number, 'still reading'])


def duration_s(call):
    began_s = time.monotonic()
    check(-1, 'warm', call, 0)
    return time.monotonic() - began_s


signal.signal(signal.SIGALRM, press)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.unraisablehook = lambda found: unraisable.append(repr(found))
expected = load()
with open(path, 'rb') as f:
    payloads = io_utils._index_payloads(
        lambda offset, length: os.pread(f.fileno(), length, offset),
        os.path.getsize(path),
    )
filled = None
with (
    num_workers_case.small_thresholds(20_000),
    num_workers_case.record_load_threads(),
    num_workers_case.preadv_replaced(slow_preadv),
):
    load_s = sorted(duration_s(load) for _ in range(5))[2]
    for number in range(5 * times):  # some moments are behind the load's end
        if counts['load', True] + counts['reader', True] == times:
            break
        delay_s = rng.uniform(1e-5, load_s)
        if number % 2:
            check(number, 'load', load, delay_s)
        else:
            filled = Filled(payloads)
            check(number, 'reader', filled.load, delay_s)
            filled.mark()
        is_open = True
        if load() != expected:
            wrong.append([number, 'the next load'])
        is_open = False
        if filled is not None and not filled.is_marked():
            wrong.append([number, 'written to afterwards'])
        filled = None
json.dump({
    'wrong': wrong,
    'late': late,
    'unraisable': unraisable,
    'interrupted': counts['load', True] + counts['reader', True],
}, sys.stdout)
'''


class TestCtrlC(NumWorkersCase):
    def test_at_random_moments(self):
        rng = random.Random(SEED)
        self.dump([rng.randbytes(LARGE_BYTES) for _ in range(4)])
        report = json.loads(
            run_script(SCRIPT, self.path, SEED, TIMES, PYTHONMALLOC='debug')
        )
        message = f'seed {SEED}: {report}'
        self.assertEqual(report['wrong'], [], message)
        self.assertEqual(report['late'], [], message)
        self.assertEqual(report['unraisable'], [], message)
        self.assertGreater(report['interrupted'], TIMES // 2, message)


if __name__ == '__main__':
    unittest.main()
