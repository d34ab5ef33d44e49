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

"""paddle.load(num_workers=n): which Tensors take over the loaded memory."""

import collections
import cProfile
import itertools
import sys
import unittest
import weakref
from unittest import mock

import numpy as np
import paddle
from adopted_case import (
    LENGTH,
    AdoptedCase,
    as_saved,
    conversions,
    numbers,
)
from num_workers_case import fingerprint, outcome
from paddle.framework import io
from parameterized import parameterized


class Call:
    """Unpickles to what a call gives."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


class Holder:
    """An object that paddle.load leaves as it is."""

    def __init__(self, held):
        self.held = held


def array_over(payload, dtype='float32'):
    """An array on an object's own memory, as numpy's unpickling makes it."""
    array = np.ndarray.__new__(np.ndarray, 0)
    dtype = np.dtype(dtype)
    shape = (len(payload) // dtype.itemsize,)
    array.__setstate__((1, shape, dtype, False, payload))
    return array


def read_only(array):
    array.setflags(write=False)
    return array


def unaligned(memory):
    del memory[0]  # moves the start, not the bytes
    return np.frombuffer(memory, 'float32')


def with_view(array):
    return [array, Holder(array[1:])]


def with_memoryview(array):
    return [array, Holder(memoryview(array))]


def with_base(array):
    return [array, Holder(array.base)]


WEAK = []
HELD = {}


def with_weak_reference(array):
    WEAK[:] = [weakref.ref(array)]
    return [array, 'text']


def hold(name, value):
    return HELD.setdefault(name, value)


class SubArray(np.ndarray):
    pass


class TableDict(dict):
    pass


class TableLayer(paddle.nn.Layer):
    def __init__(self, table):
        super().__init__()
        self.table = table


def model_state():
    paddle.seed(3)
    layers = paddle.nn.Linear(151, 131), paddle.nn.Linear(131, 133)
    return paddle.nn.Sequential(*layers)


def dense_tensor():
    tensor = paddle.base.core.DenseTensor()
    tensor.set(numbers(), paddle.CPUPlace())
    return tensor


def optimizer_state():
    model = model_state()
    optimizer = paddle.optimizer.Adam(0.1, parameters=model.parameters())
    model(paddle.ones([2, 151])).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


def structured_state():
    """What paddle 2.0 saved: arrays, and the parameters' names."""
    names = {'a': 'linear_0.w_0'}
    return {
        'a': numbers(),
        'b': numbers(seed=1),
        'StructuredToParameterName@@': names,
    }


def shared_list():
    inner = [numbers()]
    return {'a': inner, 'b': inner, 'c': Holder(inner)}


def nested():
    return {
        'model': {'w': paddle.to_tensor(numbers())},
        'list': [paddle.to_tensor(numbers(seed=1)), 'text', 3, None],
        'tuple': (paddle.to_tensor(numbers(seed=2)), [{'x': 1.5}]),
        'deep': [([{'y': (paddle.to_tensor(numbers(seed=3)),)}],)],
        'epoch': 7,
    }


# Name, what to save, how many arrays become Tensors that take them over.
ADOPTED = [
    ('state_dict', lambda: as_saved(model_state().state_dict()), 2),
    ('optimizer_state', lambda: as_saved(optimizer_state()), 4),
    ('nested', lambda: as_saved(nested()), 4),
    ('tensor', lambda: as_saved(paddle.to_tensor(numbers())), 1),
    (
        'dense_tensor',
        lambda: as_saved(dense_tensor()),
        1,
    ),
    ('structured', structured_state, 1),
    ('array', numbers, 1),
    ('list', lambda: [numbers(), [numbers(seed=1)]], 2),
    ('tuple', lambda: (numbers(), (numbers(seed=1), [numbers(seed=2)])), 3),
    (
        'ordered_dict',
        lambda: collections.OrderedDict(b=numbers(), a=numbers(seed=1)),
        2,
    ),
    ('shared_list', shared_list, 1),
    ('names', lambda: {'a': ('one', numbers()), 'b': ('two', numbers())}, 2),
    ('unnamed_beside_named', lambda: [('one', numbers()), numbers()], 1),
    ('one_row', lambda: numbers().reshape(1, -1, 1), 1),
    *(
        (dtype, lambda dtype=dtype: {'a': numbers(dtype)}, 1)
        for dtype in (
            *('int32', 'int64', 'float32', 'float64'),
            *('complex64', 'complex128', 'longlong'),
        )
    ),
    *(
        (dtype, lambda dtype=dtype: {'a': np.tile(numbers(dtype), 4)}, 1)
        for dtype in ('bool', 'int8', 'uint8', 'int16', 'float16')
    ),
    (
        'bfloat16',
        lambda: as_saved({'a': paddle.to_tensor(np.tile(numbers(), 2), 'bfloat16')}),
        1,
    ),
]  # fmt: skip


def twice(value):
    return {'a': value, 'b': value, 'c': [value]}


def over_one_bytearray(*offsets):
    """Arrays on parts of one bytearray, which only they keep alive."""
    data = numbers().tobytes() + bytes(max(offsets))
    memory = Call(memoryview, bytearray(data))
    return [
        Call(np.frombuffer, memory, 'float32', LENGTH, offset)
        for offset in offsets
    ]


# Name, what to save: nothing of it may be taken over.
COPIED = [
    ('shared_array', lambda: twice(numbers())),
    ('shared_tuple', lambda: twice(('name', numbers()))),
    ('array_in_shared_tuple', lambda: twice((numbers(), 'text'))),
    (
        'array_of_an_object',
        lambda: (lambda a: {'a': a, 'b': Holder(a)})(numbers()),
    ),
    (
        'tuple_of_an_object',
        lambda: (lambda a: {'a': a, 'b': Holder(a)})(('name', numbers())),
    ),
    (
        'payload_in_the_file',
        lambda: (lambda raw: [Call(array_over, raw), raw])(numbers().tobytes()),
    ),
    (
        'payload_of_two_arrays',
        lambda: (
            lambda raw: [Call(array_over, raw), Call(array_over, raw, 'int32')]
        )(numbers().tobytes()),
    ),
    (
        'payload_as_key',
        lambda: (lambda raw: {'a': Call(array_over, raw), raw: 1})(
            numbers().tobytes()
        ),
    ),
    ('memory_of_two_arrays', lambda: over_one_bytearray(0, 0)),
    ('overlapping_memory', lambda: over_one_bytearray(0, 8)),
    ('unaligned', lambda: [Call(unaligned, bytearray(4 * LENGTH + 1))]),
    ('part_of_a_payload', lambda: over_one_bytearray(4)),
    ('view_kept', lambda: Call(with_view, numbers())),
    ('memoryview_kept', lambda: Call(with_memoryview, numbers())),
    ('base_kept', lambda: Call(with_base, numbers())),
    ('weakly_referenced', lambda: Call(with_weak_reference, numbers())),
    ('held_array', lambda: Call(hold, 'array', numbers())),
    ('held_tuple', lambda: Call(hold, 'tuple', ('name', numbers()))),
    ('held_nested_tuple', lambda: [Call(hold, 'inner', ([], numbers()))]),
    ('fortran', lambda: np.asfortranarray(np.tile(numbers(), (3, 1)))),
    ('big_endian', lambda: numbers('>f4')),
    ('read_only', lambda: [Call(read_only, numbers())]),
    ('small', lambda: [numbers()[:16_383]]),
    ('objects', lambda: [numbers().astype(object)]),
    ('structured', lambda: [np.zeros(LENGTH, 'f4,f4')]),
    ('datetime', lambda: [numbers().astype('M8[s]')]),
    ('text', lambda: [numbers().astype('U8')]),
    ('uint64', lambda: [np.abs(numbers()).astype('uint64')]),
    ('longdouble', lambda: [numbers('longdouble')]),
    ('array_subclass', lambda: [numbers().view(SubArray)]),
    ('in_a_layer', lambda: {'a': TableLayer(numbers())}),
    (
        'also_in_a_layer',
        lambda: (lambda a: {'a': TableLayer(a), 'b': a})(numbers()),
    ),
    ('in_an_object', lambda: [Holder(numbers())]),
    (
        'structured_subclass',
        lambda: TableDict(structured_state()),
    ),
    ('subclass', lambda: {'a': TableDict(x=numbers())}),
]


def memory_ranges(value, found, seen):
    """Append (start, end, what) of all memory that a user gets at."""
    if id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, paddle.Tensor):
        start = value.data_ptr()
        size = value.element_size() * value.size
        found.append((start, start + size, 'Tensor'))
    elif isinstance(value, np.ndarray):
        start = value.ctypes.data
        found.append((start, start + value.nbytes, 'array'))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        start = np.frombuffer(value, 'u1').ctypes.data
        found.append((start, start + len(bytes(value)), 'bytes'))
    elif isinstance(value, dict):
        for item in (*value, *value.values()):
            memory_ranges(item, found, seen)
    elif isinstance(value, (list, tuple)):
        for item in value:
            memory_ranges(item, found, seen)
    elif hasattr(value, '__dict__'):
        memory_ranges(vars(value), found, seen)


class WhichTest(AdoptedCase):
    def setUp(self):
        super().setUp()
        HELD.clear()
        self.addCleanup(HELD.clear)

    def check_tensors_alone(self, value):
        """No Tensor's memory is seen through any other object."""
        found = []
        memory_ranges([value, HELD], found, {})
        found.sort()
        for (_, end, one), (start, _, other) in itertools.pairwise(found):
            if 'Tensor' in (one, other):
                self.assertLessEqual(end, start, (one, other))

    @parameterized.expand(
        (f'{name}_{protocol}', make, protocol, count)
        for name, make, count in ADOPTED
        for protocol in (4, 5)
    )
    def test_adopted(self, _, make, protocol, count):
        self.dump(make(), protocol)
        value, _, adopted = self.load_counted()
        self.assertEqual(adopted, count)
        self.assertEqual(fingerprint(value), fingerprint(self.load(1)))
        self.check_tensors_alone(value)

    @parameterized.expand(
        (f'{name}_{protocol}', make, protocol)
        for name, make in COPIED
        for protocol in (4, 5)
    )
    def test_copied(self, _, make, protocol):
        self.dump(make(), protocol)
        with conversions() as found:
            try:
                value = self.load()
            except Exception:
                value = None
        for item in found:
            self.assertFalse(item.allowed or item.adopted)
        self.check_tensors_alone(value)
        HELD.clear()
        received = outcome(self.load)
        HELD.clear()
        self.assertEqual(received, outcome(self.load, 1))

    def test_weak_reference_dies_as_ever(self):
        self.dump(Call(with_weak_reference, numbers()))
        value = self.load()
        self.assertIsInstance(value[0], paddle.Tensor)
        self.assertIsNone(WEAK[0]())

    def test_held_list_gets_the_tensor(self):
        self.dump(Call(hold, 'list', [numbers()]))
        value, _, adopted = self.load_counted()
        self.assertEqual(adopted, 1)
        self.assertIs(value, HELD['list'])
        self.check_tensors_alone(value)

    @parameterized.expand([('one', 1), ('zero', 0), ('none', None)])
    def test_serial_load_copies(self, _, num_workers):
        self.dump([numbers(), ('name', numbers())])
        with conversions() as found:
            self.load(num_workers)
        self.assertEqual([item.adopted for item in found], [False])

    def test_default_copies(self):
        self.dump({'a': numbers()})
        with conversions() as found:
            paddle.load(self.path)
        self.assertEqual([item.adopted for item in found], [False])

    def test_return_numpy_converts_nothing(self):
        self.dump({'a': numbers(), 'b': ('name', numbers())})
        value, converted, _ = self.load_counted(return_numpy=True)
        self.assertEqual(converted, 0)
        self.assertEqual(
            fingerprint(value), fingerprint(self.load(1, return_numpy=True))
        )

    def test_static_mode_converts_nothing(self):
        self.dump({'a': numbers()})
        paddle.enable_static()
        self.addCleanup(paddle.disable_static)
        value, converted, _ = self.load_counted()
        self.assertEqual(converted, 0)
        self.assertIsInstance(value['a'], paddle.base.core.DenseTensor)
        value['a'].set(np.zeros(LENGTH, 'float32'), paddle.CPUPlace())
        np.testing.assert_array_equal(self.load()['a'], numbers())

    def test_other_places_copy(self):
        self.dump({'a': numbers()})
        with mock.patch.object(io, '_current_expected_place_', object):
            _, converted, adopted = self.load_counted()
        self.assertEqual((converted, adopted), (1, 0))

    @parameterized.expand([('dict',), ('list',)])
    def test_cycle_ends_as_ever(self, kind):
        value = {'a': numbers()} if kind == 'dict' else [numbers()]
        if kind == 'dict':
            value['self'] = value
        else:
            value.append((value,))
        self.dump(value)
        for num_workers in 1, 2:
            self.assertRaises(RecursionError, self.load, num_workers)


class TracedTest(AdoptedCase):
    """Who looks at frames holds what is in them."""

    def setUp(self):
        super().setUp()
        shared = numbers()
        self.dump({'a': shared, 'b': shared, 'c': numbers(seed=1)})

    def check_copied(self, load):
        with conversions() as found:
            value = load()
        self.assertEqual([item.adopted for item in found], [False] * 3)
        value['a'][0] = 1000
        np.testing.assert_array_equal(value['b'].numpy(), numbers())

    @parameterized.expand([('settrace',), ('setprofile',)])
    def test_looking_at_the_first_count(self, install):
        """The worst case: the count that others are compared with is high."""
        counted = []

        def look(frame, event, arg):
            if frame.f_code.co_filename == io.__file__:
                frame.f_trace_opcodes = True
                if event == 'call':
                    counted.append(frame.f_code.co_name)
                if counted.count('_reference_counts') == 1:
                    frame.f_locals  # noqa: B018
            return look

        def load():
            getattr(sys, install)(look)
            try:
                return self.load()
            finally:
                getattr(sys, install)(None)

        self.check_copied(load)
        self.assertIn('_note_adoptable', counted)

    def test_profiler(self):
        self.check_copied(lambda: cProfile.Profile().runcall(self.load))


if __name__ == '__main__':
    unittest.main()
