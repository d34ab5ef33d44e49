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

"""Every single call below a restore in place fails once, or from then on."""

import contextlib
import os
import sys
import unittest
from unittest import mock

import paddle
from paddle.distributed.flex_checkpoint.dcp import in_place_restore
from paddle.distributed.flex_checkpoint.dcp import load_state_dict as loader
from paddle.framework import io_utils
from parameterized import parameterized
from restore_in_place_case import LARGE, RestoreCase, seen

sys.path.append(
    os.path.join(os.path.dirname(__file__), os.pardir, 'legacy_test')
)

from nth_fault_case import (
    NO_MEMORY,
    POINTS,
    READ_ERRORS,
    NthFaults,
    ThreadFaults,
    attempts_of,
    attribute,
    no_bytes,
    no_count,
    short_pread,
    short_preadv,
)
from num_workers_case import record_load_threads

ERRORS = list(READ_ERRORS.items())
ITEM_BYTES = 4
# What may keep a restore from being planned.
UNPLANNED = (
    OSError,
    in_place_restore._Declined,
    in_place_restore.DistcpFormatError,
)
KEYS = ('first', 'second', 'other', 'last')


class NthFaultCase(NthFaults, RestoreCase):
    points = {
        **POINTS,
        'buffer': attribute(in_place_restore.np, 'empty'),
    }
    unsuited = (io_utils._StreamUnsuited, in_place_restore._Declined)
    # The general way reads with num_workers as well.
    most_attempts = 2
    piece_bytes = 60_000
    payload_bytes = len(KEYS) * ITEM_BYTES * LARGE[0] * LARGE[1]

    def setUp(self):
        super().setUp()
        threads = record_load_threads()
        threads.start()
        self.addCleanup(threads.stop)
        self.write({key: self.array() for key in KEYS})
        self.expected = self.outcome(self.load, 1)
        self.assertIsInstance(self.expected, dict)
        self.start_watching()

    def load(self, num_workers):
        dtypes = dict.fromkeys(KEYS, 'float32')
        dtypes['other'] = 'int32'  # goes through a buffer
        tensors = {key: paddle.zeros(LARGE, dtypes[key]) for key in KEYS}
        loader.local_load_state_dict(
            tensors, self.path, use_dist=False, num_workers=num_workers
        )
        return tensors

    def outcome(self, load, num_workers):
        try:
            tensors = load(num_workers)
        except Exception as error:
            return type(error), str(error)
        # What was written to twice has another inplace_version.
        return {
            key: {**seen(tensor), 'inplace_version': None}
            for key, tensor in tensors.items()
        }

    @contextlib.contextmanager
    def attempts(self):
        """How restoring in place ended, then how the general way read."""
        with (
            attempts_of(in_place_restore, '_plan_restore') as plans,
            attempts_of(in_place_restore, '_read_payloads') as reads,
            attempts_of(io_utils, '_load_pickle_in_parallel') as loads,
        ):
            ends = []
            yield ends
            for end in plans:
                if end is not None:  # nothing is written then
                    self.assertTrue(issubclass(end, UNPLANNED), end)
                    ends.append(in_place_restore._Declined)
            ends += reads + loads

    @contextlib.contextmanager
    def warned(self):
        messages = []
        with (
            super().warned() as load_messages,
            mock.patch.object(
                in_place_restore.logger, 'warning', messages.append
            ),
        ):
            yield messages
        messages += load_messages


class TestReads(NthFaultCase):
    @parameterized.expand(ERRORS)
    def test_preadv(self, name, fault):
        self.check_until_none_fires('preadv', fault, least=7)

    @parameterized.expand(ERRORS)
    def test_pread(self, name, fault):
        self.check_until_none_fires('pread', fault, least=3)

    @parameterized.expand(ERRORS)
    def test_open(self, name, fault):
        self.check_until_none_fires('open', fault, harmless=None)

    @parameterized.expand(
        [('open', None), ('fstat', None), ('pread', None), ('preadv', None)]
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
        for lasting in (False,) if harmless else (False, True):
            self.check_until_none_fires(
                point, fault, lasting=lasting, harmless=harmless, least=3
            )


class TestMemoryAndThreads(ThreadFaults, NthFaultCase):
    @parameterized.expand([('view', 7), ('buffer', 1)])
    def test_memory(self, point, least):
        for lasting in False, True:
            self.check_until_none_fires(
                point, NO_MEMORY, lasting=lasting, least=least
            )

    @parameterized.expand([('get',), ('exists',), ('sleep',)])
    def test_waiting(self, point):
        """How often the restoring thread waits is chance."""
        for number in range(1, 4):
            with self.points[point](number, NO_MEMORY, lasting=False):
                found, _, _ = self.observed(3)
            self.assertEqual(found, self.expected)
            self.check_next_load()


if __name__ == '__main__':
    unittest.main()
