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

"""paddle.load(num_workers=n): Tensors on loaded memory are like any other."""

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import unittest

import numpy as np
import paddle
from adopted_case import (
    LENGTH,
    AdoptedCase,
    as_saved,
    conversions,
    numbers,
)
from num_workers_case import fingerprint
from paddle.incubate import multiprocessing
from parameterized import parameterized


def facts(tensor):
    """All that one can ask a Tensor, and what it says."""
    dense = tensor.get_tensor()
    return (
        fingerprint(tensor), tensor.strides, tensor.is_contiguous(),
        tensor.inplace_version, tensor.is_leaf, tensor.offset, tensor.type,
        tensor.grad, tensor._holder_size(), tensor.element_size(),
        tensor._is_initialized(), tensor.data_ptr() % tensor.element_size(),
        dense._layout(), dense._dtype(), type(tensor),
    )  # fmt: skip


def unnumbered(result):
    """Paddle numbers the Tensors that operations make; drop the number."""
    for item in result if isinstance(result, list) else [result]:
        if getattr(item, 'name', '').startswith('eager_tmp'):
            item.name = 'eager_tmp'
    return result


def added(tensor):
    tensor.add_(paddle.to_tensor(1.5))
    tensor[3:9] = 4.0
    tensor.scale_(0.5)
    return tensor


def value_set(tensor):
    tensor.set_value(numbers(seed=5))
    return tensor


def value_given(tensor):
    """A parameter that got its value is on its own."""
    parameter = paddle.create_parameter([LENGTH], 'float32')
    parameter.set_value(tensor)
    tensor.zero_()
    return parameter.detach().clone()


def cleared(tensor):
    tensor._clear_data()
    return tensor._is_initialized()


def cleared_and_set(tensor):
    tensor._clear_data()
    tensor.get_tensor().set(numbers(seed=6), paddle.CPUPlace())
    return tensor


def resized(tensor):
    tensor.resize_([10])
    return tensor.clone()


def reshaped(tensor):
    rest = tensor[11:]
    tensor.reshape_([LENGTH, 1])
    rest[0] = 7.0
    return [tensor, rest.clone()]


def numpy_written(tensor):
    array = tensor.numpy()
    array[:] = 0
    return [tensor, array.flags.owndata]


def cloned(tensor):
    copy = tensor.clone()
    copy.zero_()
    return tensor


def dlpack(tensor):
    """The capsule shares memory, and keeps it."""
    shared = paddle.utils.dlpack.from_dlpack(tensor.__dlpack__())
    shared[0] = 9.0
    first = tensor[0].item()
    del tensor
    return [first, shared]


def numpy_from_dlpack(tensor):
    array = np.from_dlpack(tensor)
    tensor[1] = 8.0
    del tensor
    return array.copy()


def shared_memory(tensor):
    """What arrives from a queue shares memory with what was sent."""
    queue = multiprocessing.SimpleQueue()
    try:
        queue.put(tensor)
        received = queue.get()
    finally:
        queue._reader.close()
        queue._writer.close()
    received[2] = 6.0
    tensor[4] = 5.0
    return [tensor, received.clone()]


def pickled_again(tensor):
    return pickle.loads(pickle.dumps(tensor))


def saved_again(tensor):
    tensor[0] = 3.0
    return [as_saved(tensor), as_saved({'a': [tensor]})]


def gradient(tensor):
    """The Tensor's last holder is the backward pass, which drops it."""
    tensor.stop_gradient = False
    weight = paddle.full([LENGTH], 2.0)
    weight.stop_gradient = False
    product = (tensor * weight).pow(2)
    del tensor
    product.sum().backward()
    return weight.grad


USES = [
    *(added, value_set, value_given, cleared, cleared_and_set, resized),
    *(reshaped, numpy_written, cloned, dlpack, numpy_from_dlpack),
    *(shared_memory, pickled_again, saved_again, gradient),
]


class UseTest(AdoptedCase):
    """Whatever is done to it: as if it had been copied."""

    def load_one(self, num_workers=2):
        self.dump({'a': ('name', numbers())})
        with conversions() as found:
            value = self.load(num_workers)
        self.assertEqual([found[0].adopted], [num_workers > 1])
        return value.pop('a')

    @parameterized.expand(
        [('float32',), ('float64',), ('int64',), ('complex64',)]
    )
    def test_facts(self, dtype):
        value = {
            'a': numbers(dtype),
            'b': numbers(dtype)[1:].reshape(-1, 1, 870),
        }
        found = self.load_adopted(value)
        expected = self.load(1)
        for key in value:
            self.assertEqual(facts(found[key]), facts(expected[key]), key)

    @parameterized.expand((use.__name__, use) for use in USES)
    def test_use(self, _, use):
        found, expected = (
            fingerprint(unnumbered(use(self.load_one(num_workers))))
            for num_workers in (2, 1)
        )
        self.assertEqual(found, expected)
        self.assertEqual(
            fingerprint(self.load()), fingerprint(self.load(1)), 'the file'
        )

    def test_written_in_place(self):
        tensor = self.load_one()
        address = tensor.data_ptr()
        tensor[:] = 2.0
        self.assertEqual(tensor.data_ptr(), address)
        self.assertEqual(tensor.inplace_version, 1)
        np.testing.assert_array_equal(tensor, np.full(LENGTH, 2.0))

    def test_second_load_is_independent(self):
        value = {'a': ('one', numbers()), 'b': ('two', numbers(seed=1))}
        first = self.load_adopted(value)
        second = self.load()
        first['a'].zero_()
        first['b'].set_value(numbers(seed=2))
        np.testing.assert_array_equal(second['a'], value['a'][1])
        np.testing.assert_array_equal(second['b'], value['b'][1])
        np.testing.assert_array_equal(self.load()['a'], value['a'][1])

    def test_fork(self):
        tensor = self.load_one()
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # a child that hangs ends
            right = np.array_equal(tensor.numpy(), numbers())
            tensor[0] = 1000.0
            right = right and tensor[0].item() == 1000.0
            os._exit(0 if right else 1)
        _, status = os.waitpid(child, 0)
        self.assertEqual(status, 0)
        np.testing.assert_array_equal(tensor, numbers())


class LifetimeTest(AdoptedCase):
    """The memory lives as long as the Tensor, and no longer."""

    def setUp(self):
        super().setUp()
        # References alone must do, with no help of the collector.
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        self.arrays = [numbers(), numbers(seed=1)]
        self.dump({'a': self.arrays[0], 'b': [self.arrays[1]]})
        with conversions() as found:
            self.value = self.load()
        self.assertEqual([item.adopted for item in found], [True, True])
        self.found = found

    def alive(self):
        return [item.array() is not None for item in self.found]

    def test_dict_dropped_first(self):
        tensors = [self.value['a'], self.value['b'][0]]
        del self.value
        # Memory that is free is taken again.
        fillers = [np.full(LENGTH, -1.0, 'float32') for _ in range(8)]
        for tensor, array in zip(tensors, self.arrays, strict=True):
            np.testing.assert_array_equal(tensor, array)
        self.assertEqual(self.alive(), [True, True])
        del tensors, tensor, fillers
        self.assertEqual(self.alive(), [False, False])

    def test_tensors_dropped_first(self):
        self.value['a'] = None
        self.assertEqual(self.alive(), [False, True])
        del self.value['b'][0]
        self.assertEqual(self.alive(), [False, False])
        self.assertEqual(self.value, {'a': None, 'b': []})

    def test_dropped_in_another_thread(self):
        tensors = [self.value.pop('a'), self.value.pop('b')]
        thread = threading.Thread(target=tensors.clear)
        thread.start()
        thread.join()
        self.assertEqual(self.alive(), [False, False])

    def test_shared_by_a_second_tensor(self):
        other = paddle.zeros([1])
        self.value['a']._share_buffer_to(other)
        del self.value
        self.assertEqual(self.alive(), [True, False])
        self.assertEqual(other.item(), self.arrays[0][0])
        del other
        self.assertEqual(self.alive(), [False, False])

    def test_cleared(self):
        tensor = self.value['a']
        tensor._clear_data()
        self.assertEqual(self.alive(), [False, True])


class TrainingTest(AdoptedCase):
    """Training goes on bit for bit as from a serial load."""

    def setUp(self):
        super().setUp()
        with paddle.utils.unique_name.guard():
            model, optimizer = self.build(seed=1)
            self.train(model, optimizer)
        self.paths = [self.path + kind for kind in ('.model', '.optimizer')]
        paddle.save(model.state_dict(), self.paths[0])
        paddle.save(optimizer.state_dict(), self.paths[1])
        self.files = [self.content(path) for path in self.paths]

    def content(self, path):
        with open(path, 'rb') as f:
            return f.read()

    def build(self, seed):
        paddle.seed(seed)
        model = paddle.nn.Sequential(
            paddle.nn.Linear(151, 131),
            paddle.nn.LayerNorm(131),
            paddle.nn.GELU(),
            paddle.nn.Linear(131, 139),
        )
        optimizer = paddle.optimizer.AdamW(
            0.01, parameters=model.parameters(), weight_decay=0.1
        )
        return model, optimizer

    def train(self, model, optimizer, steps=3):
        losses = []
        data = paddle.to_tensor(
            numbers()[: 151 * 32].reshape(32, 151) / np.float32(100)
        )
        for _ in range(steps):
            loss = model(data).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            losses.append(loss.numpy().tobytes())
        return losses

    def resumed(self, num_workers):
        with conversions() as found:
            states = [self.load(num_workers, path) for path in self.paths]
        adopted = sum(item.adopted for item in found)
        self.assertEqual(adopted, 4 + 2 if num_workers > 1 else 0)
        with paddle.utils.unique_name.guard():  # the names that were saved
            model, optimizer = self.build(seed=2)
            model.set_state_dict(states[0])
            optimizer.set_state_dict(states[1])
            losses = self.train(model, optimizer)
        results = [
            [item.numpy().tobytes() for item in model.parameters()],
            [fingerprint(item) for item in optimizer.state_dict().values()],
            [fingerprint(item) for item in states[0].values()],
        ]
        return losses, results

    def test_losses_and_states(self):
        losses, results = self.resumed(2)
        expected_losses, expected = self.resumed(1)
        self.assertEqual(losses, expected_losses)
        self.assertEqual(results, expected)
        self.assertEqual(
            [self.content(path) for path in self.paths], self.files
        )

    def test_trained_itself(self):
        """The optimizer writes to the loaded memory."""
        results = []
        for num_workers in 2, 1:
            weight = self.load(num_workers, self.paths[0])['0.weight']
            weight.stop_gradient = False
            optimizer = paddle.optimizer.SGD(0.1, parameters=[weight])
            for _ in range(3):
                weight.pow(2).sum().backward()
                optimizer.step()
                optimizer.clear_grad()
            results.append(weight.numpy().tobytes())
        self.assertEqual(*results)


# Loads with the memory's high-water mark set to where it is, prints by how
# many times the payload it rose, and leaves Tensors to the interpreter's end.
LOAD_AND_EXIT = """
import builtins, sys
import paddle

def status_bytes(key):
    with open('/proc/self/status') as f:
        fields = dict(line.split(':', 1) for line in f)
    return int(fields[key].split()[0]) * 1024

path, num_workers = sys.argv[1], int(sys.argv[2])
paddle.to_tensor([1.0])
with open('/proc/self/clear_refs', 'w') as f:
    f.write('5')
before = status_bytes('VmRSS')
value = paddle.load(path, num_workers=num_workers)
rise = status_bytes('VmHWM') - before
payload = sum(tensor.size * 4 for tensor in value.values())
print('rise', rise / payload)
builtins.kept = value['0']
cycle = [value['1']]
cycle.append(cycle)
"""


@unittest.skipUnless(os.access('/proc/self/clear_refs', os.W_OK), 'needs Linux')
class ProcessTest(AdoptedCase):
    def rise(self, num_workers):
        process = subprocess.run(
            [sys.executable, '-c', LOAD_AND_EXIT, self.path, str(num_workers)],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(process.returncode, 0, process.stderr)
        return float(process.stdout.split('rise')[1])

    def test_peak_memory_and_exit(self):
        """One payload in parallel, where a serial load takes two."""
        self.dump(
            {str(index): np.ones(6 << 20, 'float32') for index in range(4)}
        )
        self.assertLess(self.rise(2), 1.15)
        self.assertGreater(self.rise(1), 1.15)


if __name__ == '__main__':
    unittest.main()
