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

"""What the tests of Tensors that take over loaded memory have in common."""

import contextlib
import pickle
import sys
import weakref
from io import BytesIO
from unittest import mock

import numpy as np
import paddle
from num_workers_case import NumWorkersCase, attempts, small_thresholds
from paddle.framework import io

# Enough for a Tensor to take the memory over, and not a round number.
LENGTH = 20_011


def numbers(dtype='float32', seed=0):
    """LENGTH numbers of either sign, or as good as the dtype has them."""
    random = np.random.default_rng(seed)
    return random.integers(-100, 100, LENGTH).astype(dtype)


def as_saved(value):
    """What paddle.save writes for a value."""
    buffer = BytesIO()
    paddle.save(value, buffer)
    buffer.seek(0)
    return pickle.load(buffer)


class Conversion:
    """How one array became a Tensor; holds neither."""

    def __init__(self, array, adoptable):
        self.allowed = id(array) in adoptable
        self.adopted = False
        self.array = weakref.ref(array)


@contextlib.contextmanager
def conversions():
    """Yields the list of the conversions of arrays into Tensors."""
    found = []
    convert = io._array_to_tensor

    def recorded(array, adoptable):
        found.append(Conversion(array, adoptable))
        tensor = convert(array, adoptable)
        found[-1].adopted = tensor.data_ptr() == array.ctypes.data
        return tensor

    with mock.patch.object(io, '_array_to_tensor', recorded):
        yield found


class AdoptedCase(NumWorkersCase):
    """Loads in parallel whatever the size of the file."""

    def setUp(self):
        super().setUp()
        if sys.gettrace() or sys.getprofile():
            self.skipTest('a load that is traced copies')
        patched = small_thresholds()
        patched.start()
        self.addCleanup(patched.stop)

    def load(self, num_workers=2, path=None, **options):
        return paddle.load(
            path or self.path, num_workers=num_workers, **options
        )

    def load_counted(self, **options):
        """The value, how many arrays were converted, how many adopted."""
        with attempts() as ends, conversions() as found:
            value = self.load(**options)
        self.assertEqual(ends, [None])
        return value, len(found), sum(item.adopted for item in found)

    def load_adopted(self, value, protocol=4):
        """Dump a value and load it, all its arrays taken over."""
        self.dump(value, protocol)
        value, converted, adopted = self.load_counted()
        self.assertGreater(adopted, 0)
        self.assertEqual(adopted, converted)
        return value
