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


"""paddle.load(path, safetensors=True, return_numpy=True, num_workers=n)."""

from wiring import Tree, patch

_ARRAYS = '_load_safetensors_arrays(\n    {callee}, path, config.num_workers\n)'


@patch(
    kind='permanent',
    checked='2026-11-29',
    since='3.2.0',
    mark=('framework/safetensors_reader.py', '_load_safetensors_arrays'),
    tests=(
        'legacy_test/safetensors_case.py',
        'legacy_test/test_paddle_load_safetensors.py',
        'legacy_test/test_paddle_load_safetensors_damaged.py',
        'legacy_test/test_paddle_load_safetensors_faults.py',
        'legacy_test/test_paddle_load_safetensors_nth_fault.py',
    ),
)
def safetensors_num_workers(tree: Tree) -> None:
    """io: read safetensors files in parallel in paddle.load

    paddle.load(path, safetensors=True, return_numpy=True, num_workers=n) lets
    the library open the file and check its header, then has n threads read
    the tensors' bytes, each tensor's into memory of its own. Results are
    those of the library, which loads whatever is unusual and whatever fails.

    Without return_numpy nothing changes: for Tensors the library only maps
    the file and reads a page when it is first used. Reading all of it in
    parallel was slower; loading and assigning to a model had 0.24 to 0.66
    times the speed.

    Measured with 512 MiB on tmpfs, 2 cores, 4 workers, medians of 5 fresh
    processes, against the library: arrays of 256 MiB 263 -> 59 ms, 16 MiB
    250 -> 64 ms, 2 MiB 251 -> 149 ms. Peak memory is 1.0 times that of the
    tensors instead of 2.0 times.
    """
    tree.new(
        'framework/safetensors_reader.py',
        why='the format has nothing in common with pickled files',
    )
    io = tree.file('framework/io.py')
    io.add_import(
        'from .safetensors_reader import _load_safetensors_arrays',
        why='load calls it',
    )
    io.function('load').swap_call(
        ['load_file(path)'],
        _ARRAYS,
        why='with return_numpy; the call that stood there stays the serial '
        'path. Those for Tensors only map the file and are left alone',
    )
