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

"""paddle.load(..., num_workers=n): Tensors without a second copy."""

from wiring import Tree, patch

_ADOPTABLE = 'adoptable=config.adoptable'


@patch(
    kind='permanent',
    checked='2026-11-29',
    since='3.2.0',
    mark=('framework/io.py', '_note_adoptable'),
    tests=(
        'legacy_test/adopted_case.py',
        'legacy_test/test_paddle_load_adopted_tensors.py',
        'legacy_test/test_paddle_load_adopted_tensors_in_use.py',
    ),
)
def adopt_payloads(tree: Tree) -> None:
    """io: let Tensors take over what a parallel load has read

    With num_workers above 1 and on the CPU, a Tensor made of a loaded array
    takes the array's memory over where nobody else can see it: contiguous,
    of native byte order, referred to from nowhere else. Any other array is
    copied as before.

    The copy into the Tensor takes half the time of a load, and the memory
    of the array once more.

    Measured with 2 GiB on tmpfs, Tensor results, 2 cores, 4 workers,
    medians of 5 in one process, against a serial load: tensors of 256 MiB
    1935 -> 140 ms, 16 MiB 671 -> 151 ms, 2 MiB 535 -> 179 ms; peak memory in
    a fresh process with 256 MiB tensors 1.13 -> 1.00 times the payload.
    """
    io = tree.add(
        'framework/io.py',
        only=('_note_adoptable', '_array_to_tensor'),
        why='what becomes of a loaded array is decided here',
    )
    io.function('_parse_load_config').insert_before_return(
        'inner_config.adoptable = {}',
        why='nothing is taken over unless the loaded value allows it',
    )
    load = io.function('load')
    load.wrap_call(
        '_load_pickle',
        '_note_adoptable(\n    {call},\n    config,\n)',
        why='only here nobody else holds the value yet',
    )

    result = io.function('_parse_load_result')
    for name in '_ndarray_to_tensor', '_tuple_to_tensor':
        function = io.function(name)
        function.add_parameter('adoptable=()', why='to hand it on')
        result.add_argument(
            name, 'adoptable=adoptable', why='arrays become Tensors there'
        )
    io.function('_ndarray_to_tensor').swap_call(
        ['paddle.to_tensor(obj)'],
        '_array_to_tensor(obj, adoptable)',
        why='this call copies',
    )
    io.function('_tuple_to_tensor').swap_call(
        ['paddle.to_tensor(obj[1])'],
        '_array_to_tensor(obj[1], adoptable)',
        why='this call copies',
    )
    result.add_parameter('adoptable=()', why='to hand it on')

    load.add_argument(
        '_ndarray_to_tensor', _ADOPTABLE, why='state dicts are converted here'
    )
    load.add_argument(
        '_parse_load_result',
        _ADOPTABLE,
        times=2,  # dicts, and everything else
        why='other objects are converted there',
    )
