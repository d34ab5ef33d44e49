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

"""Loads in forked processes, many threads, finalizers, at the end, deep down."""

import gc
import os
import pickle
import signal
import sys
import threading
import unittest
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import paddle
from num_workers_case import (
    LARGE_BYTES,
    NumWorkersCase,
    attempts,
    fingerprint,
    load_threads,
    log_records,
    outcome,
    preadv_replaced,
    small_thresholds,
)
from parameterized import parameterized
from pressure_case import DEADLINE_S, in_child, run_script

PAYLOAD_COUNT = 4


class LifetimeCase(NumWorkersCase):
    def setUp(self):
        super().setUp()
        self.value = {
            f'w{n}': np.arange(n, n + LARGE_BYTES // 8)
            for n in range(PAYLOAD_COUNT)
        }
        self.dump(self.value)
        self.expected = outcome(self.load, 1)
        thresholds = small_thresholds(20_000)
        thresholds.__enter__()
        self.addCleanup(thresholds.__exit__, None, None, None)

    def load(self, num_workers):
        return paddle.load(
            self.path, return_numpy=True, num_workers=num_workers
        )

    def parallel_load(self):
        """Its outcome, and whether all of it was done in parallel."""
        with attempts() as ends:
            found = outcome(self.load, 3)
        return found == self.expected, ends == [None], len(load_threads())


AS_EVER = (True, True, 0)


class TestFork(LifetimeCase):
    def test_child_loads(self):
        self.assertEqual(in_child(self.parallel_load), AS_EVER)

    def test_child_loads_after_its_parent(self):
        for _ in range(3):
            self.assertEqual(self.parallel_load(), AS_EVER)
            self.assertEqual(in_child(self.parallel_load), AS_EVER)
        self.assertEqual(self.parallel_load(), AS_EVER)

    def test_child_of_a_child(self):
        def child():
            return self.parallel_load(), in_child(self.parallel_load)

        self.assertEqual(in_child(child), (AS_EVER, AS_EVER))

    def test_fork_while_another_thread_loads(self):
        """The child has the loading thread's objects, but no such thread."""
        reading, go_on = threading.Event(), threading.Event()

        def stand_in(preadv, *args):
            reading.set()
            go_on.wait()
            return preadv(*args)

        with preadv_replaced(stand_in), ThreadPoolExecutor(1) as pool:
            load = pool.submit(self.parallel_load)
            try:
                reading.wait()
                go_on_in_child = in_child(self.load_by, go_on)
            finally:
                go_on.set()
            self.assertEqual(go_on_in_child, AS_EVER)
            found, was_parallel, _ = load.result()
        self.assertTrue(found and was_parallel)

    def load_by(self, go_on):
        go_on.set()
        return self.parallel_load()

    @parameterized.expand([(0,), (2,)])
    def test_data_loader(self, num_workers):
        """Its workers are forked, and load items in parallel."""
        self.assertEqual(self.parallel_load(), AS_EVER)
        # In a child, for the loader closes its queues at some later time.
        self.assertEqual(
            in_child(self.rows_loaded, num_workers),
            [[n, *AS_EVER] for n in range(6)],
        )
        self.assertEqual(self.parallel_load(), AS_EVER)

    def rows_loaded(self, num_workers):
        case = self

        class Items(paddle.io.Dataset):
            def __len__(self):
                return 6

            def __getitem__(self, index):
                found = case.parallel_load()
                return (np.array([index, *found], 'int64'),)

        loader = paddle.io.DataLoader(
            Items(),
            batch_size=2,
            num_workers=num_workers,
            use_shared_memory=False,
            timeout=60,
            places=paddle.CPUPlace(),
            return_list=True,
        )
        return np.concatenate([rows.numpy() for (rows,) in loader]).tolist()


# What an object does while it is unpickled.
_while_unpickled = []


def _run_while_unpickled():
    return _while_unpickled[-1]()


class RunsWhileUnpickled:
    def __reduce__(self):
        return _run_while_unpickled, ()


class TestForkInside(LifetimeCase):
    """The child has a load that is under way, but none of its threads."""

    def load_in_both(self, in_child_then):
        """The child's exit status; it ends by a signal if it hangs."""
        reading, go_on, pids = threading.Event(), threading.Event(), []

        def stand_in(preadv, *args):
            reading.set()
            go_on.wait()
            return preadv(*args)

        def fork():
            if not pids:  # not again where the child loads serially
                reading.wait()
                pids.append(os.fork())
                go_on.set()
                if not pids[0]:
                    signal.alarm(DEADLINE_S)
                    in_child_then()
            return 'text'

        _while_unpickled.append(fork)
        self.addCleanup(_while_unpickled.clear)
        large = [bytes([n]) * LARGE_BYTES for n in range(4)]
        self.dump([RunsWhileUnpickled(), *large])
        is_right = False
        try:
            with preadv_replaced(stand_in), log_records():
                is_right = self.unpickle(2) == ['text', *large]
        except SystemExit:
            is_right = True
        finally:
            if pids == [0]:
                os._exit(0 if is_right else 1)
        self.assertTrue(is_right)
        return os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1])

    def test_child_goes_on(self):
        self.assertEqual(self.load_in_both(lambda: None), 0)

    def test_child_leaves(self):
        self.assertEqual(self.load_in_both(sys.exit), 0)


class TestThreads(LifetimeCase):
    LOADS = 5

    def test_eight_threads_that_switch_all_the_time(self):
        paths = [
            self.dump_to(f'{n}.pdparams', np.full(LARGE_BYTES // 8, n))
            for n in range(8)
        ]
        expected = [fingerprint(self.unpickle(1, path)) for path in paths]
        barrier = threading.Barrier(len(paths))

        def loads(path):
            barrier.wait()
            return [
                fingerprint(self.unpickle(3, path)) for _ in range(self.LOADS)
            ]

        interval_s = sys.getswitchinterval()
        self.addCleanup(sys.setswitchinterval, interval_s)
        sys.setswitchinterval(1e-6)
        with attempts() as ends, ThreadPoolExecutor(len(paths)) as pool:
            found = list(pool.map(loads, paths))
        sys.setswitchinterval(interval_s)
        self.assertEqual(ends, [None] * self.LOADS * len(paths))
        for one_found, one_expected in zip(found, expected, strict=True):
            self.assertEqual(one_found, [one_expected] * self.LOADS)
        self.assertEqual(load_threads(), set())

    def dump_to(self, name, array):
        path = os.path.join(self.directory, name)
        return self.write(pickle.dumps([array, array + 0.5], 4), path)


class LoadsWhenGone:
    def __init__(self, load, found):
        self.load, self.found = load, found

    def __del__(self):
        self.found.append(self.load())


class TestFinalizers(LifetimeCase):
    def test_del(self):
        found = []
        item = LoadsWhenGone(self.parallel_load, found)
        del item
        self.assertEqual(found, [AS_EVER])

    def test_del_in_a_cycle(self):
        """The collector calls it, and at that between any two instructions."""
        found = []
        item = LoadsWhenGone(self.parallel_load, found)
        item.itself = item
        del item
        gc.collect()
        self.assertEqual(found, [AS_EVER])

    def test_weakref(self):
        found = []

        class Item:
            pass

        item = Item()
        weakref.finalize(item, lambda: found.append(self.parallel_load()))
        reference = weakref.ref(
            item, lambda _: found.append(self.parallel_load())
        )
        del item
        self.assertIsNone(reference())
        self.assertEqual(found, [AS_EVER] * 2)

    def test_collector(self):
        """Loads while it collects, and collects while it loads."""
        found, inside = [], []

        def callback(phase, info):
            if not inside:
                inside.append(phase)
                found.append(self.parallel_load())
                inside.clear()

        threshold = gc.get_threshold()
        gc.callbacks.append(callback)
        try:
            gc.set_threshold(50, 1, 1)
            outer = self.parallel_load()
        finally:
            gc.set_threshold(*threshold)
            gc.callbacks.remove(callback)
        self.assertTrue(outer[0])
        self.assertEqual(outer[2], 0)
        self.assertGreater(len(found), 2)
        self.assertEqual({(right, left) for right, _, left in found}, {(1, 0)})


# ---- at the end of the interpreter

END_SCRIPT = '''
import atexit
import os
import pickle
import sys
import threading

import num_workers_case
from paddle.framework import io_utils

path, num_workers, is_daemon = sys.argv[1], int(sys.argv[2]), sys.argv[3]
thresholds = num_workers_case.small_thresholds(20_000)
thresholds.__enter__()


def report(
    moment,
    # Names of this module, and imports, may be gone by then.
    load=io_utils._load_pickle,
    serial_load=pickle.load,
    open=open,
    write=os.write,
    path=path,
    num_workers=num_workers,
):
    with open(path, 'rb') as f:
        value = load(serial_load, path, f, num_workers)
    text = ' '.join(f'{len(item)} {item[:3]}' for item in value)
    write(1, f'{moment}: {text}\\n'.encode())


class ReportsWhenGone:
    def __init__(self, report=report):
        self.report = report

    def __del__(self):
        self.report('module')


def after_main():
    threading.main_thread().join()
    report('thread')


def load_for_ever():
    while True:
        report('daemon')
        begun.set()


begun = threading.Event()
if is_daemon == 'daemon':
    threading.Thread(target=load_for_ever, daemon=True).start()
    begun.wait()
else:
    report('main')
    threading.Thread(target=after_main).start()
    atexit.register(report, 'atexit')
    gone_with_the_module = ReportsWhenGone()
'''


class TestEnd(LifetimeCase):
    def setUp(self):
        super().setUp()
        # Anything else is imported when it is loaded.
        self.dump([b'one' * LARGE_BYTES, b'two' * LARGE_BYTES])

    def test_as_serial(self):
        """Values, and an end with status 0."""
        serial, parallel = (
            run_script(END_SCRIPT, self.path, num_workers, 'no daemon')
            for num_workers in (1, 3)
        )
        self.assertEqual(parallel, serial)
        moments = [line.partition(':')[0] for line in serial.splitlines()]
        self.assertEqual(moments, ['main', 'thread', 'atexit', 'module'])

    def test_daemon_thread(self):
        """It is left alone wherever it is, and its threads with it."""
        for _ in range(2):
            run_script(END_SCRIPT, self.path, 3, 'daemon')


# ---- deep in a recursion


def at_depth(depth, call):
    """What a call gives so many frames further down."""
    return at_depth(depth - 1, call) if depth else call()


class TestRecursion(LifetimeCase):
    # From where nothing can be called to where the load works as ever.
    FRAMES = 80
    # A load with threads is called by so many functions more than one without.
    MORE_FRAMES = 10

    def test_load_at_every_depth(self):
        """RecursionError, or from a few frames further up the value."""
        with log_records():
            serial, parallel = map(self.frames_needed, (1, 3))
        self.assertGreater(serial, 5)
        self.assertLess(parallel, self.FRAMES)
        self.assertLessEqual(parallel, serial + self.MORE_FRAMES)
        self.assertEqual(self.parallel_load(), AS_EVER)

    def frames_needed(self, num_workers):
        ends = [self.end_at(n, num_workers) for n in range(self.FRAMES)]
        needed = ends.count(False)
        # No depth at which it works and one further up at which it does not.
        self.assertEqual(ends, sorted(ends))
        return needed

    def end_at(self, frames_left, num_workers):
        depth = sys.getrecursionlimit() - depth_here() - frames_left
        try:
            value = at_depth(depth, lambda: self.load(num_workers))
        except RecursionError:
            return False
        finally:
            self.assertEqual(load_threads(), set(), frames_left)
        self.assertEqual(fingerprint(value), self.expected[1])
        return True


def depth_here():
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


if __name__ == '__main__':
    unittest.main()
