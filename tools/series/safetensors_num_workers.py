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


"""paddle.load(path, safetensors=True, num_workers=n)."""

from wiring import Tree, patch

_ARRAYS = '_load_safetensors_arrays(\n    {callee}, path, config.num_workers\n)'
_TENSORS = (
    '_load_safetensors_tensors(\n    {callee}, path, config.num_workers\n)'
)
_CPU_TENSORS = (
    '_load_safetensors_tensors(\n'
    '    {callee},\n'
    '    path,\n'
    '    config.num_workers,\n'
    "    device='cpu',\n"
    ')'
)


@patch(
    kind='permanent',
    checked='2026-11-29',
    since='3.2.0',
    mark=('framework/safetensors_reader.py', '_load_safetensors_tensors'),
    tests=(
        'legacy_test/safetensors_case.py',
        'legacy_test/test_paddle_load_safetensors.py',
        'legacy_test/test_paddle_load_safetensors_damaged.py',
        'legacy_test/test_paddle_load_safetensors_faults.py',
    ),
)
def safetensors_num_workers(tree: Tree) -> None:
    """io: read safetensors files in parallel in paddle.load

    paddle.load(path, safetensors=True, num_workers=n) lets the library open
    the file and check its header, then has n threads read the tensors' bytes,
    each tensor's into memory of its own. Results are those of the library,
    which loads whatever is unusual and whatever fails.

    Without return_numpy the library only maps the file. Reading it takes
    longer than that, also when the Tensors are read from afterwards, and is
    worth it where they are written to or must not depend on the file.

    Measured with 512 MiB on tmpfs, 2 busy cores, 8 workers, best of 7,
    against the library: arrays of 256 MiB 535 -> 145 ms, 16 MiB
    300 -> 107 ms, 2 MiB 424 -> 437 ms; Tensors of 16 MiB, loaded 1 -> 193 ms,
    loaded and summed 61 -> 134 ms, loaded and added to in place
    506 -> 311 ms.
    """
    tree.new(
        'framework/safetensors_reader.py',
        why='the format has nothing in common with pickled files',
    )
    io = tree.file('framework/io.py')
    io.add_import(
        'from .safetensors_reader import '
        '_load_safetensors_arrays, _load_safetensors_tensors',
        why='load calls them',
    )
    load = io.function('load')
    load.swap_call(
        ['load_file(path)'],
        _ARRAYS,
        why='with return_numpy; the call that stood there stays the serial '
        'path',
    )
    load.swap_call(
        ["load_file(path, device='cpu')"],
        _CPU_TENSORS,
        why='without; for CUDA there are calls of their own, left alone',
    )
    io.function('_legacy_load').swap_call(
        ['load_file(path)'],
        _TENSORS,
        why='it takes the same options',
    )
