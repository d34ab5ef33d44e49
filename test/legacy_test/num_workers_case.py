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

"""What the tests of paddle.load(num_workers=...) have in common."""

import contextlib
import ctypes
import logging
import os
import pickle
import struct
import tempfile
import threading
import unittest
from unittest import mock

import numpy as np
import paddle
from paddle.framework import io_utils

LOGGER_NAME = 'paddle.framework.io_utils'
# A payload that the C pickler writes outside its frames, with odd ends.
LARGE_BYTES = 64 * 1024 + 24


def small_thresholds(piece_bytes=10_000, min_piece_bytes=1):
    """Let files of a few bytes take the parallel path, cut in many reads."""
    return mock.patch.multiple(
        io_utils,
        _MIN_PARALLEL_BYTES=1,
        _MIN_PARALLEL_PAYLOAD_BYTES=1,
        _PIECE_BYTES=piece_bytes,
        _MIN_PIECE_BYTES=min_piece_bytes,
    )


@contextlib.contextmanager
def attempts():
    """Yields the list of how the parallel attempts ended: None or an error."""
    ends = []
    attempt = io_utils._load_pickle_in_parallel

    def recorded(*args):
        try:
            value = attempt(*args)
        except BaseException as error:
            ends.append(error)
            raise
        ends.append(None)
        return value

    with mock.patch.object(io_utils, '_load_pickle_in_parallel', recorded):
        yield ends


@contextlib.contextmanager
def preadv_replaced(stand_in):
    """Workers read by stand_in(preadv, fd, views, offset) for os.preadv."""
    preadv = os.preadv

    def replaced(fd, views, offset):
        # Not load_threads(): a list of /proc may lack a thread while others end.
        if threading.get_native_id() not in _load_threads:
            return preadv(fd, views, offset)
        return stand_in(preadv, fd, views, offset)

    with mock.patch.object(os, 'preadv', replaced):
        yield


@contextlib.contextmanager
def log_records():
    """Yields the list of what the loader's module logs, whatever its level."""
    records = []
    handler = logging.Handler(logging.DEBUG)
    handler.emit = records.append
    logger = logging.getLogger(LOGGER_NAME)
    with mock.patch.object(logger, 'level', logging.DEBUG):
        logger._cache.clear()
        logger.addHandler(handler)
        try:
            yield records
        finally:
            logger.removeHandler(handler)
            logger._cache.clear()


def warnings_in(records):
    return [
        record.getMessage()
        for record in records
        if record.levelno >= logging.WARNING
    ]


_load_threads = set()


def record_load_threads():
    """Lets load_threads() know of the threads that loads start from now on."""
    _load_threads.clear()  # the kernel gives their numbers out again
    work = io_utils._ParallelPayloads._work

    def recorded(reader, worker):
        _load_threads.add(threading.get_native_id())
        work(reader, worker)

    return mock.patch.object(io_utils._ParallelPayloads, '_work', recorded)


def load_threads():
    """The threads of loads that the kernel still knows."""
    return _load_threads.intersection(map(int, os.listdir('/proc/self/task')))


@contextlib.contextmanager
def thread_starts_replaced(stand_in):
    """Loads start threads by stand_in(start, function, args)."""
    start = io_utils._thread.start_new_thread

    def replaced(function, args):
        return stand_in(start, function, args)

    with mock.patch.object(io_utils._thread, 'start_new_thread', replaced):
        yield


def open_descriptors():
    return sorted(os.listdir('/proc/self/fd'))


def fingerprint(value, seen=None):
    """All that two loads of one file must have in common, NaN included.

    An object met again is described by where it was met first, so that equal
    fingerprints mean equal sharing too.
    """
    seen = {} if seen is None else seen
    if isinstance(value, (bool, int, float, complex, str, type(None))):
        return type(value).__name__, repr(value)
    if id(value) in seen:
        return 'seen', seen[id(value)][0]
    seen[id(value)] = len(seen), value  # held, or its id might be used again
    kind = type(value).__name__
    if isinstance(value, (bytes, bytearray)):
        return kind, bytes(value), byte_behind(value)
    if isinstance(value, memoryview):
        return kind, value.readonly, fingerprint(value.obj, seen)
    if isinstance(value, np.ndarray):
        flags = value.flags
        if value.dtype == object:
            data = [fingerprint(item, seen) for item in value.ravel().tolist()]
        else:
            data = value.tobytes('A')
        return (
            kind, value.dtype.str, value.shape, value.strides, data,
            flags.writeable, flags.c_contiguous, flags.f_contiguous,
        )  # fmt: skip
    if isinstance(value, paddle.Tensor):
        array = value.numpy()
        # Paddle counts the names that it makes up.
        name = value.name
        if name.startswith('generated_'):
            name = 'generated'
        return (
            kind, str(value.dtype), tuple(value.shape), array.tobytes(), name,
            value.stop_gradient, value.persistable, str(value.place),
        )  # fmt: skip
    if isinstance(value, dict):
        items = [
            (fingerprint(key, seen), fingerprint(item, seen))
            for key, item in value.items()
        ]
        return kind, items
    if isinstance(value, (list, tuple)):
        return kind, [fingerprint(item, seen) for item in value]
    if isinstance(value, (set, frozenset)):
        return kind, sorted(fingerprint(item) for item in value)
    if hasattr(value, '__dict__'):
        return kind, fingerprint(vars(value), seen)
    return kind, repr(value)


def byte_behind(value):
    """That of a bytes object or bytearray: a zero, which belongs to it."""
    kind = 'bytes' if isinstance(value, bytes) else 'bytearray'
    _, locate = io_utils._python_api()[kind]
    return ctypes.string_at(locate(value) + len(value), 1)


def outcome(call, *args, **kwargs):
    """What a call gives: the value's fingerprint, or the exact exception."""
    try:
        value = call(*args, **kwargs)
    except Exception as error:
        return 'raises', type(error), str(error)
    return 'value', fingerprint(value)


# ---- hand-made pickle streams


def frame(content, claimed_bytes=None):
    length = len(content) if claimed_bytes is None else claimed_bytes
    return b'\x95' + struct.pack('<Q', length) + content


def binbytes(data, opcode=b'B'):
    width = '<I' if opcode == b'B' else '<Q'
    return opcode + struct.pack(width, len(data)) + data


def stream(*parts, protocol=4):
    return b'\x80' + bytes([protocol]) + b''.join(parts)


class NumWorkersCase(unittest.TestCase):
    """A temporary directory; nothing may be left over when a test ends."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.path = os.path.join(directory.name, 'model.pdparams')
        patch = record_load_threads()
        patch.start()
        self.addCleanup(patch.stop)
        self.addCleanup(self.check_nothing_left, open_descriptors())

    def check_nothing_left(self, descriptors):
        self.assertEqual(load_threads(), set())
        self.assertEqual(open_descriptors(), descriptors)

    def write(self, data, path=None):
        with open(path or self.path, 'wb') as f:
            f.write(data)
        return path or self.path

    def dump(self, value, protocol=4):
        return self.write(pickle.dumps(value, protocol))

    def unpickle(self, num_workers, path=None, serial_load=pickle.load):
        """What paddle.load unpickles, before it converts anything."""
        path = path or self.path
        with open(path, 'rb') as f:
            return io_utils._load_pickle(serial_load, path, f, num_workers)

    def check_same_unpickled(self, num_workers=2, message=None):
        """Compares with the serial load; says how the attempts ended."""
        expected = outcome(self.unpickle, 1)
        with attempts() as ends:
            found = outcome(self.unpickle, num_workers)
        if found != expected:
            self.fail(
                f'{message}: expected {shortened(expected)}, '
                f'but received {shortened(found)}'
            )
        return expected, ends


def shortened(value, length=300):
    text = repr(value)
    return text if len(text) <= length else f'{text[:length]}...'
