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

"""What the handler of a signal raises while load_state_dict reads."""

import itertools
import os
import signal
import tempfile
import unittest
from unittest import mock

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp import (
    load_state_dict as loader,
)
from paddle.distributed.flex_checkpoint.dcp import (
    metadata_reader,
)
from parameterized import parameterized

# The second has a payload of its own in the file.
SHAPES = {'small': (2, 3), 'large': (300, 100)}


class Deadline(ValueError):
    """Of a class that damaged files raise too."""


class Unreachable(OSError):
    """As TimeoutError is, which watchdogs raise."""


def tensors(value):
    return {key: paddle.full(shape, value) for key, shape in SHAPES.items()}


class TestSignals(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = folder.name
        dist.save_state_dict(tensors(3.0), self.path)
        self.metadata = os.path.join(self.path, '0.metadata')

    def check_comes_out(self, load, error_class, name='pread'):
        """The alarm goes off in every single call of a kind, in turn.

        Of `os.stat` only those of the checkpoint's own files count.
        """

        def handler(*args):
            raise error_class('alarm')

        old = signal.signal(signal.SIGALRM, handler)
        self.addCleanup(signal.signal, signal.SIGALRM, old)
        function = getattr(os, name)
        for number in itertools.count(1):
            countdown = iter(range(number))

            def stand_in(
                *args, countdown=countdown, last=number - 1, **options
            ):
                is_counted = isinstance(args[0], int) or (
                    str(args[0]).startswith(os.path.join(self.path, ''))
                )
                if is_counted and next(countdown, None) == last:
                    signal.raise_signal(signal.SIGALRM)
                return function(*args, **options)

            with mock.patch.object(os, name, stand_in), self.subTest(number):
                try:
                    load()
                except error_class as error:
                    self.assertEqual(str(error), 'alarm')
                else:
                    break
        self.assertGreater(number, 1)

    @parameterized.expand(
        [
            (workers, error, name)
            # The serial paddle.load takes an error of os.stat for no file.
            for workers, name in ((None, 'pread'), (4, 'pread'), (4, 'stat'))
            for error in (Deadline, Unreachable)
        ]
    )
    def test_load_state_dict(self, num_workers, error_class, name):
        target = tensors(0.0)

        def load():
            with mock.patch.object(
                loader, 'load_state_dict_impl', side_effect=AssertionError
            ):
                dist.load_state_dict(target, self.path, num_workers=num_workers)

        self.check_comes_out(load, error_class, name)
        for tensor in target.values():
            self.assertTrue(np.all(tensor.numpy() == 3.0))

    @parameterized.expand([(Deadline,), (Unreachable,)])
    def test_load_state_dict_metadata(self, error_class):
        self.check_comes_out(
            lambda: dist.load_state_dict_metadata(self.metadata), error_class
        )

    def test_while_the_metadata_is_unpickled(self):
        """No read is made meanwhile; a class of the file is looked up."""

        def handler(*args):
            raise Deadline('alarm')

        old = signal.signal(signal.SIGALRM, handler)
        self.addCleanup(signal.signal, signal.SIGALRM, old)
        find_class = metadata_reader._MetadataUnpickler.find_class

        def alarmed(unpickler, module, name):
            signal.raise_signal(signal.SIGALRM)
            return find_class(unpickler, module, name)

        with (
            mock.patch.object(
                metadata_reader._MetadataUnpickler, 'find_class', alarmed
            ),
            self.assertRaisesRegex(Deadline, 'alarm'),
        ):
            dist.load_state_dict(tensors(0.0), self.path)


if __name__ == '__main__':
    unittest.main()
