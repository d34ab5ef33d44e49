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

import errno
import os
import pickle
import threading
import unittest
from unittest import mock

import numpy as np
import paddle
from paddle.distributed.flex_checkpoint.dcp import in_place_restore
from paddle.framework import io_utils
from parameterized import parameterized
from restore_in_place_case import LARGE, RestoreCase


def zeros():
    return paddle.zeros(LARGE)


class FaultCase(RestoreCase):
    def setUp(self):
        super().setUp()
        self.arrays = {key: self.array() for key in ('first', 'second')}
        self.arrays['small'] = self.array(shape=(3,))
        self.write(self.arrays)

    def make(self):
        return ({key: paddle.zeros(a.shape) for key, a in self.arrays.items()},)

    def bytes_of(self):
        with open(self.file_path, 'rb') as f:
            return f.read()

    def write_bytes(self, data):
        with open(self.file_path, 'wb') as f:
            f.write(data)

    def check_restored(self, state_dict):
        for key, array in self.arrays.items():
            self.assertEqual(state_dict[key].numpy().tobytes(), array.tobytes())


class TestNothingIsWritten(FaultCase):
    def test_missing_key(self):
        def make():
            return ({'first': zeros(), 'no': zeros(), 'second': zeros()},)

        error = self.check_fails_as_serial(make)
        self.assertIsInstance(error, AssertionError)
        self.assertIn('no is not in source_state_dict', str(error))

    def test_damaged_files(self):
        whole = self.bytes_of()
        ends = [0, 1, 2, 10, 150, 500, 100_000, 250_000, 300_000]
        for end in [*ends, *range(len(whole) - 260, len(whole), 20)]:
            with self.subTest(end=end):
                self.write_bytes(whole[:end])
                self.check_fails_as_serial(self.make)

    def test_bytes_behind_the_end(self):
        self.write_bytes(self.bytes_of() + b'more')
        self.check_as_serial(self.make, None)

    @parameterized.expand([('u4',), ('u8',), ('U3',), ('O',)])
    def test_array_that_is_no_tensor(self, dtype):
        self.write({**self.arrays, 'other': np.zeros((200, 300), dtype)})
        self.check_fails_as_serial(self.make)

    def test_big_endian(self):
        array = self.array()
        self.write({**self.arrays, 'first': array.astype('>f4')})
        self.check_as_serial(self.make, None)

    def test_text_of_protocol_2_in_a_later_one(self):
        data = pickle.dumps(self.arrays, 2)
        self.write_bytes(b'\x80\x04' + data[2:])
        self.check_as_serial(self.make, None)

    def test_no_dict(self):
        self.write_bytes(pickle.dumps([self.array()], 4))
        self.check_fails_as_serial(self.make)

    def test_missing_file(self):
        os.remove(self.file_path)
        self.check_fails_as_serial(self.make)

    def test_folder(self):
        os.remove(self.file_path)
        os.mkdir(self.file_path)
        self.check_fails_as_serial(self.make)

    def test_pipe(self):
        os.remove(self.file_path)
        os.mkfifo(self.file_path)
        self.check_fails_as_serial(self.make)

    def test_sparse_tensor(self):
        errors = []
        for num_workers in (1, 4):
            sparse = paddle.zeros([3]).to_sparse_coo(1)
            with self.assertRaises(Exception) as raised:
                self.restore({'small': sparse}, num_workers)
            errors.append(raised.exception)
        self.assertEqual(str(errors[1]), str(errors[0]))

    def test_no_memory_for_buffers(self):
        target = {'first': zeros(), 'second': paddle.zeros(LARGE, 'int32')}
        with mock.patch.object(
            in_place_restore.np, 'empty', side_effect=MemoryError
        ):
            self.assertIsNone(self.restore(target))
        self.assertEqual(
            target['first'].numpy().tobytes(), self.arrays['first'].tobytes()
        )


class TestFaults(FaultCase):
    """Faults after the first byte was written: a warning, then as ever."""

    def restore_with(self, state_dict, fault):
        """Restore while a context manager does harm; -> (error, warning)."""
        error = None
        with (
            fault,
            mock.patch.object(in_place_restore.logger, 'warning') as warning,
        ):
            try:
                self.assertIsNone(self.restore(state_dict))
            except Exception as raised:
                error = raised
        warning.assert_called_once()
        return error, warning.call_args.args[0]

    def check_versions(self, target, changes):
        """Of what was overwritten autograd must know, of no more."""
        fresh = self.make()[0]
        for key in ('first', 'second'):
            self.assertEqual(
                target[key].inplace_version - fresh[key].inplace_version,
                changes,
            )

    def test_read_error(self):
        target = self.make()[0]
        read_piece, failed = io_utils._read_piece, []

        def read(*args):
            if not failed:
                failed.append(True)
                raise OSError(errno.EIO, 'Input/output error')
            read_piece(*args)

        error, warning = self.restore_with(
            target, mock.patch.object(io_utils, '_read_piece', read)
        )
        self.assertIsNone(error)
        for words in ('Input/output error', self.file_path, 'first, second)'):
            self.assertIn(words, warning)
        self.check_restored(target)
        self.check_versions(target, 2)

    def test_no_thread(self):
        target = self.make()[0]
        start = mock.patch.object(
            io_utils._thread,
            'start_new_thread',
            side_effect=RuntimeError("can't start new thread"),
        )
        error, warning = self.restore_with(target, start)
        self.assertIsNone(error)
        self.assertIn("can't start new thread", warning)
        self.assertIn('in part or whole: no tensor)', warning)
        self.check_restored(target)
        self.check_versions(target, 1)

    def test_no_second_thread(self):
        shape = (3 * io_utils._MIN_PIECE_BYTES // 4 // 4,)
        self.arrays = {key: self.array(shape=shape) for key in 'abcd'}
        self.write(self.arrays)
        target, read = self.make()[0], threading.Event()
        start, started = io_utils._thread.start_new_thread, []
        preadv = os.preadv

        def read_first(*args):
            try:
                return preadv(*args)
            finally:
                reader[0]._closed = True
                read.set()

        def start_once(work, args):
            if started:
                self.assertTrue(read.wait(60))
                raise RuntimeError("can't start new thread")
            reader.append(work.__self__)
            started.append(start(work, args))
            return started[0]

        reader = []
        with mock.patch.object(os, 'preadv', read_first):
            error, warning = self.restore_with(
                target,
                mock.patch.object(
                    io_utils._thread, 'start_new_thread', start_once
                ),
            )
        self.assertIsNone(error)
        # The first piece ends in the second tensor.
        self.assertIn('in part or whole: a, b)', warning)
        self.check_restored(target)
        fresh = self.make()[0]['a'].inplace_version
        self.assertEqual(
            [tensor.inplace_version - fresh for tensor in target.values()],
            [2, 2, 1, 1],
        )

    def test_truncated_between_scan_and_read(self):
        target, reader = self.make()[0], io_utils._ParallelPayloads

        def truncate(*args):
            os.truncate(self.file_path, 300_000)
            return reader(*args)

        error, warning = self.restore_with(
            target,
            mock.patch.object(in_place_restore, '_ParallelPayloads', truncate),
        )
        self.assertIn('EOFError', warning)
        self.assertIn('first, second', warning)
        with self.assertRaises(type(error)) as serial:
            self.restore(self.make()[0], num_workers=1)
        self.assertEqual(str(serial.exception), str(error))
        self.check_versions(target, 1)

    def test_interrupt(self):
        target, entered, leave = (
            self.make()[0],
            threading.Event(),
            threading.Event(),
        )
        preadv = os.preadv

        reading = []

        def read(*args):
            reading.append(args)
            entered.set()
            self.assertTrue(leave.wait(60))
            try:
                return preadv(*args)
            finally:
                reading.remove(args)

        def interrupted(reader):
            self.assertTrue(entered.wait(60))
            leave.set()
            raise KeyboardInterrupt

        with (
            mock.patch.object(os, 'preadv', read),
            mock.patch.object(io_utils._ParallelPayloads, 'take', interrupted),
            self.assertRaises(KeyboardInterrupt),
        ):
            self.restore(target)
        self.assertEqual(reading, [])
        self.check_versions(target, 1)

    def test_interrupt_before_the_first_read(self):
        with (
            mock.patch.object(
                io_utils._ParallelPayloads,
                'start',
                side_effect=KeyboardInterrupt,
            ),
            self.assertRaises(KeyboardInterrupt),
        ):
            self.restore(self.make()[0])


if __name__ == '__main__':
    unittest.main()
