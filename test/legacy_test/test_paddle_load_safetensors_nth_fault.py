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

"""Every single call below a parallel safetensors load fails once."""

import contextlib
import os
import unittest
from unittest import mock

from nth_fault_case import (
    NO_MEMORY,
    POINTS,
    READ_ERRORS,
    NthCall,
    NthFaults,
    ThreadFaults,
    attempts_of,
    attribute,
    no_bytes,
    no_count,
    short_pread,
    short_preadv,
)
from paddle.framework import safetensors_reader
from parameterized import parameterized
from safetensors_case import SafetensorsCase, file_of, outcome

TENSORS = {f'{n}': ('F32', (100, 100 + n)) for n in range(4)}
ERRORS = list(READ_ERRORS.items())


@contextlib.contextmanager
def stat(number, fault, lasting):
    """Of files; the kernel's own of threads are not asked on a disk."""
    nth = NthCall(os.stat, number, fault, lasting)

    def replaced(path, *args, **options):
        call = nth.call if str(path).startswith('/proc/') else nth
        return call(path, *args, **options)

    with mock.patch.object(os, 'stat', replaced):
        yield nth


POINTS = {
    **POINTS,
    'stat': stat,
    'array': attribute(safetensors_reader, '_make_array'),
}


class NthFaultCase(NthFaults, SafetensorsCase):
    points = POINTS
    piece_bytes = 30_000
    payload_bytes = sum(4 * rows * n for _, (rows, n) in TENSORS.values())
    outcome = staticmethod(outcome)

    def setUp(self):
        super().setUp()
        self.write(file_of(TENSORS))
        self.expected = outcome(self.load, 1)
        self.assertEqual(self.expected[0], 'value', self.expected)
        self.start_watching()

    def attempts(self):
        return attempts_of(safetensors_reader, '_load_in_parallel')


class TestReads(NthFaultCase):
    @parameterized.expand(ERRORS)
    def test_preadv(self, name, fault):
        self.check_until_none_fires('preadv', fault, least=5)

    @parameterized.expand(
        [(f'{point}_{name}', point, fault)
         for point in ('pread', 'fstat') for name, fault in ERRORS]
    )  # fmt: skip
    def test_before_the_tensors(self, _, point, fault):
        self.check_until_none_fires(point, fault)

    @parameterized.expand(ERRORS)
    def test_where_the_serial_load_may_fail_too(self, name, fault):
        self.check_until_none_fires('open', fault, harmless=None)
        self.check_until_none_fires('stat', fault, harmless=None, least=2)

    @parameterized.expand(
        [('open', None), ('fstat', False), ('pread', False), ('stat', None),
         ('preadv', False)]
    )  # fmt: skip
    def test_all_from_then_on(self, point, harmless):
        self.check_until_none_fires(
            point, READ_ERRORS['EIO'], lasting=True, harmless=harmless
        )

    @parameterized.expand(
        [('pread', short_pread, True), ('preadv', short_preadv, True),
         ('pread', no_bytes, False), ('preadv', no_count, False)]
    )  # fmt: skip
    def test_fewer_bytes(self, point, fault, harmless):
        self.check_until_none_fires(point, fault, harmless=harmless)
        if harmless is False:
            self.check_until_none_fires(
                point, fault, lasting=True, harmless=harmless
            )


class TestMemoryAndThreads(ThreadFaults, NthFaultCase):
    @parameterized.expand(
        [('target', 4), ('bytearray', 4), ('view', 5), ('array', 4)]
    )
    def test_memory(self, point, least):
        for lasting in False, True:
            self.check_until_none_fires(
                point, NO_MEMORY, lasting=lasting, least=least
            )


if __name__ == '__main__':
    unittest.main()
