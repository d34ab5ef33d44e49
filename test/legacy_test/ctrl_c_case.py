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

"""Ctrl-C at random moments, for scripts with an interpreter of their own."""

import contextlib
import json
import random
import signal
import sys
import threading
import time

import num_workers_case


class RandomCtrlC:
    """Presses Ctrl-C in calls that read with threads, and looks what is left.

    Args:
        seed (int): Of the moments.
        times (int): How many calls are to be ended by it.
    """

    def __init__(self, seed, times):
        self.rng, self.times = random.Random(seed), times
        self.ended, self.calls, self.wrong = 0, 0, []
        self.reading, self.late, self.pressed = set(), [], []
        self.is_open = False

    def slow_preadv(self, preadv, fd, views, offset):
        """Waits before and behind the system call, writes down what it does."""
        me = threading.get_native_id()
        self.reading.add(me)
        if not self.is_open:
            self.late.append(offset)
        time.sleep(0.0002)
        count = preadv(fd, views, offset)
        time.sleep(0.0001)
        if not self.is_open:
            self.late.append(offset)
        self.reading.discard(me)
        return count

    def press(self, *_):
        """What Ctrl-C is to the interpreter, at a moment that a timer chose."""
        if self.is_open:
            self.pressed.append(True)
            signal.raise_signal(signal.SIGINT)

    @contextlib.contextmanager
    def undisturbed(self):
        """Reads are right here."""
        self.is_open = True
        try:
            yield
        finally:
            self.is_open = False

    def is_interrupted(self, call, delay_s):
        """Whether Ctrl-C ended it; a signal behind its end is not for it."""
        self.pressed.clear()
        try:
            try:
                self.is_open = True
                signal.setitimer(signal.ITIMER_REAL, delay_s)
                call()
            finally:
                self.is_open = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            self.is_open = False
            return True
        return False

    def check(self, call, delay_s):
        self.calls += 1
        ended = self.is_interrupted(call, delay_s)
        self.ended += ended
        if ended != bool(self.pressed):
            self.note(f'interrupted: {ended}, pressed: {self.pressed}')
        if self.reading or num_workers_case.load_threads():
            self.note('still reading')

    def note(self, what):
        self.wrong.append(f'call {self.calls}: {what}')

    def duration_s(self, call):
        began_s = time.monotonic()
        self.check(call, 0)
        return time.monotonic() - began_s

    def run(self, kinds):
        """Interrupt calls until enough have been, and print what was wrong.

        Args:
            kinds (list[callable]): In turns. Each returns what to call, and a
                generator function that is gone through afterwards and yields
                what is wrong.
        """
        unraisable = []
        sys.unraisablehook = lambda found: unraisable.append(repr(found))
        signal.signal(signal.SIGALRM, self.press)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with (
            num_workers_case.small_thresholds(20_000),
            num_workers_case.record_load_threads(),
            num_workers_case.preadv_replaced(self.slow_preadv),
        ):
            call_s = [
                sorted(self.duration_s(kind()[0]) for _ in range(5))[2]
                for kind in kinds
            ]
            # Some moments are behind a call's end.
            while self.ended < self.times and self.calls < 5 * self.times:
                number = self.calls % len(kinds)
                call, left_by = kinds[number]()
                self.check(call, self.rng.uniform(1e-5, call_s[number]))
                for what in left_by():
                    self.note(what)
                call = left_by = None  # what they hold goes at once
        json.dump(
            {
                'wrong': self.wrong,
                'late': self.late,
                'unraisable': unraisable,
                'interrupted': self.ended,
            },
            sys.stdout,
        )
