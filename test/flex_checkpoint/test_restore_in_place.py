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

import unittest
from unittest.mock import ANY

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.base import core
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight
from parameterized import parameterized
from restore_in_place_case import LARGE, RestoreCase, digest

CODES = {
    'bool': 'b1',
    'int8': 'i1',
    'uint8': 'u1',
    'int16': 'i2',
    'int32': 'i4',
    'int64': 'i8',
    'bfloat16': 'u2',
    'float16': 'f2',
    'float32': 'f4',
    'float64': 'f8',
    'complex64': 'c8',
    'complex128': 'c16',
}


def zeros(shape=LARGE, dtype='float32'):
    return paddle.zeros(shape, dtype)


def sharded(tensor, is_flattened=False):
    shape = tuple(tensor.shape)
    return ShardedWeight(
        'w',
        tensor,
        shape,
        shape,
        (0,) * len(shape),
        is_flattened=is_flattened,
        flattened_range=slice(0, tensor.size) if is_flattened else None,
    )


class TestFiles(RestoreCase):
    @parameterized.expand(CODES.items())
    def test_dtype(self, dtype, code):
        # As many bytes as a payload has that lies outside the frames.
        shape = (64 * 1024 // np.dtype(code).itemsize,)
        self.write(
            {'large': self.array(code, shape), 'one': self.array(code, ())}
        )
        self.check_as_serial(
            lambda: ({'large': zeros(shape, dtype), 'one': zeros((), dtype)},),
            in_place=1,
        )

    @parameterized.expand([('float8_e4m3fn',), ('float8_e5m2',)])
    def test_dtype_that_has_no_arrays(self, dtype):
        saved = zeros((70_000,)).astype(dtype).numpy()
        self.write({'w': saved, 'x': self.array()})
        self.check_as_serial(
            lambda: ({'w': zeros((70_000,)).astype(dtype), 'x': zeros()},),
            in_place=1,
        )

    @parameterized.expand([(2, None), (3, 2), (4, 2), (5, 2)])
    def test_protocol(self, protocol, in_place):
        arrays = {
            'a': self.array(),
            'small': self.array(shape=(3, 5)),
            'scalar': self.array(shape=()),
            'empty': self.array(shape=(0, 4)),
            'b': self.array('i8'),
            'fortran': np.asfortranarray(self.array()),
        }
        self.write(arrays, protocol)
        self.check_as_serial(
            lambda: (
                {
                    'a': zeros(),
                    'small': zeros((3, 5)),
                    'scalar': zeros(()),
                    'empty': zeros((0, 4)),
                    'b': zeros(dtype='int64'),
                    'fortran': zeros(),
                },
            ),
            in_place,
        )

    @parameterized.expand(
        [
            (protocol, axes)
            for protocol in (4, 5)
            for axes in ((1, 0, 2), (2, 1, 0), (1, 2, 0))
        ]
    )
    def test_permuted_axes(self, protocol, axes):
        array = self.array(shape=(40, 50, 60)).transpose(axes)
        self.write({'w': array, 'x': self.array()}, protocol)
        _, ours = self.attempt(lambda: ({'w': zeros(array.shape)},), 4)
        self.assertEqual(ours[0]['seen']['bytes'], digest(array))

    def test_protocol_5_of_read_only_arrays(self):
        array = self.array()
        array.flags.writeable = False
        self.write({'w': array}, 5)
        self.check_as_serial(lambda: ({'w': zeros()},), in_place=1)

    def test_saved_by_paddle(self):
        tensors = {
            'a': paddle.to_tensor(self.array()),
            'b': paddle.ones([300, 400]).astype('bfloat16'),
            'scalar': paddle.to_tensor(3.0),
            'transposed': paddle.to_tensor(self.array()).transpose([1, 0]),
        }
        dist.save_state_dict(tensors, self.path)
        self.check_as_serial(
            lambda: ({k: paddle.zeros_like(t) for k, t in tensors.items()},),
            in_place=2,
        )

    def test_more_keys_in_the_file(self):
        self.write({'x': self.array(), 'w': self.array(), 'y': self.array()})
        self.check_as_serial(lambda: ({'w': zeros()},), in_place=1)

    def test_one_array_under_two_keys(self):
        array = self.array()
        self.write({'a': array, 'b': array})
        self.check_as_serial(lambda: ({'a': zeros(), 'b': zeros()},), 0)

    def test_nothing_to_restore(self):
        self.write({'w': self.array()})
        self.check_as_serial(lambda: ({},), in_place=0)


class TestMemory(RestoreCase):
    def setUp(self):
        super().setUp()
        self.write({'a': self.array(), 'b': self.array()})

    def check(self, make, in_place):
        self.check_as_serial(make, in_place)

    def test_views_side_by_side(self):
        def make():
            base = zeros((700, 200))
            return {'b': base[400:650], 'a': base[7:257]}, base

        self.check(make, 2)

    def test_views_with_gaps(self):
        def make():
            base = zeros((300, 500))
            return {'a': base[:250, :200], 'b': base[:250, 200:400]}, base

        self.check(make, 0)

    def test_transposed(self):
        def make():
            base = zeros((200, 250))
            return {'a': base.transpose([1, 0]), 'b': zeros()}, base

        self.check(make, 1)

    @parameterized.expand([(keys,) for keys in ('ab', 'ba')])
    def test_overlap(self, keys):
        def make():
            base = zeros((500, 200))
            places = base[:250], base[249:499]
            return dict(zip(keys, places, strict=True)), base

        self.check(make, 0)

    @parameterized.expand(
        [(order, at) for order in ('first', 'last') for at in (0, 100, 249)]
    )
    def test_small_tensor_in_a_large_one(self, order, at):
        self.write({'a': self.array(), 'row': self.array(shape=(200,))})

        def make():
            base = zeros()
            places = {'a': base, 'row': base[at]}
            if order == 'first':
                places = {'row': base[at], 'a': base}
            return places, base

        self.check(make, 0)

    def test_wide_tensor_around_others(self):
        self.write(
            {
                'a': self.array(),
                'rest': self.array(shape=(2, 100)),
                'b': self.array(),
            }
        )

        def make():
            base = zeros((1000, 200))
            wide = paddle.as_strided(base, [2, 100], [150_000, 1])
            return {'a': base[300:550], 'rest': wide, 'b': base[10:260]}, base

        self.check(make, 0)

    def test_backward_view(self):
        self.write({'back': self.array(shape=(200,)), 'a': self.array()})

        def make():
            base = zeros((500, 200))
            # It starts behind the other tensor and goes back into it.
            back = paddle.as_strided(base, [200], [-1], offset=50_100 * 4)
            return {'back': back, 'a': base[:250]}, base

        self.check(make, 0)

    @parameterized.expand([('ab',), ('ba',)])
    def test_tied(self, keys):
        def make():
            weight = zeros()
            return dict.fromkeys(keys, weight), weight

        self.check(make, 2)

    def test_tied_views(self):
        def make():
            base = zeros((300, 200))
            return {'a': base[20:270], 'b': base[20:270]}, base

        self.check(make, 2)

    def test_tied_but_of_another_dtype(self):
        self.write({'a': self.array(), 'b': self.array('i4')})

        def make():
            weight = zeros()
            return {'b': weight.view('int32'), 'a': weight}, weight

        self.check(make, 2)

    def test_value_that_goes_past_the_end_of_a_view(self):
        def make():
            base = zeros((500, 200))
            return {'b': base[200:450], 'a': base[:100]}, base

        self.check(make, 0)

    def test_no_memory_of_its_own(self):
        array = self.array()
        frozen = bytes(array.nbytes)

        def make():
            view = np.frombuffer(bytearray(frozen), 'f4').reshape(LARGE)
            view.flags.writeable = False
            tensor = core.eager.Tensor(
                value=view,
                place=core.CPUPlace(),
                persistable=False,
                zero_copy=True,
                name=None,
                stop_gradient=True,
            )
            shared = paddle.to_tensor(array)
            again = paddle.utils.dlpack.from_dlpack(
                paddle.utils.dlpack.to_dlpack(shared)
            )
            self.views.append(view)
            return {'a': tensor, 'b': again}, shared

        self.views = []
        self.check(make, 2)
        serial, ours = self.views
        self.assertTrue(serial.any())
        self.assertEqual(ours.tobytes(), serial.tobytes())


class TestTensors(RestoreCase):
    def setUp(self):
        super().setUp()
        self.write({'w': self.array(), 'x': self.array()})

    # Other tensors may lie where a larger value might end: ANY in place.

    @parameterized.expand(
        [('float64',), ('float16',), ('int32',), ('bfloat16',), ('int8',)]
    )
    def test_other_dtype(self, dtype):
        self.check_as_serial(
            lambda: ({'w': zeros(dtype=dtype), 'x': zeros()},), ANY
        )

    @parameterized.expand([((50_000,),), ((200, 250),), ((3,),), ((500, 500),)])
    def test_other_shape(self, shape):
        self.check_as_serial(lambda: ({'w': zeros(shape), 'x': zeros()},), ANY)

    @parameterized.expand([(True,), (False,)])
    def test_gradients(self, enabled):
        def make():
            x = zeros()
            x.stop_gradient = False
            return {
                'w': paddle.create_parameter(LARGE, 'float32'),
                'x': x * 2,
            }, x

        with paddle.set_grad_enabled(enabled):
            self.check_as_serial(make, in_place=2)

    def test_backward_tells_that_its_input_has_changed(self):
        for num_workers in (1, 4):
            w, x = zeros(), zeros()
            w.stop_gradient = x.stop_gradient = False
            loss = (w * x).sum()
            self.restore({'w': w}, num_workers)
            with self.assertRaisesRegex(RuntimeError, 'tensor_version'):
                loss.backward()

    def test_not_initialized(self):
        self.write({'x': self.array()})
        self.check_as_serial(
            lambda: ({'no': paddle.Tensor(), 'x': zeros()},), in_place=1
        )

    def test_sharded_weights(self):
        self.check_as_serial(
            lambda: ({'w': sharded(zeros()), 'x': sharded(zeros())},),
            in_place=2,
        )

    def test_sharded_weight_not_initialized(self):
        self.check_as_serial(
            lambda: ({'w': sharded(paddle.Tensor()), 'x': zeros()},), in_place=1
        )

    def test_empty_sharded_weight(self):
        self.write({'w': self.array(shape=(0, 4)), 'x': self.array()})
        self.check_as_serial(
            lambda: ({'w': sharded(zeros((0, 4))), 'x': zeros()},), in_place=1
        )

    def test_flattened_sharded_weights(self):
        self.write(
            {'w': self.array(shape=(40_000,)), 'x': self.array(shape=(30_000,))}
        )

        def make():
            fused = zeros((70_000,))
            return {
                'x': sharded(fused[40_000:], is_flattened=True),
                'w': sharded(fused[:40_000], is_flattened=True),
            }, fused

        self.check_as_serial(make, in_place=2)

    def test_dist_tensor(self):
        mesh = dist.ProcessMesh([0])
        self.check_as_serial(
            lambda: (
                {
                    'w': dist.shard_tensor(zeros(), mesh, [dist.Shard(0)]),
                    'x': dist.shard_tensor(zeros(), mesh, [dist.Replicate()]),
                },
            ),
            in_place=2,
        )

    @parameterized.expand([('offload', True), ('no offload', False)])
    def test_whole_call(self, _, offload):
        saved = {'w': paddle.to_tensor(self.array()), 'x': paddle.ones(LARGE)}
        dist.save_state_dict(saved, self.path)
        target = {'w': zeros(), 'x': zeros()}
        addresses = [tensor.data_ptr() for tensor in target.values()]
        dist.load_state_dict(target, self.path, offload=offload, num_workers=4)
        for key, tensor in target.items():
            self.assertEqual(
                tensor.numpy().tobytes(), saved[key].numpy().tobytes()
            )
        self.assertEqual([t.data_ptr() for t in target.values()], addresses)


if __name__ == '__main__':
    unittest.main()
