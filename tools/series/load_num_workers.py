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

"""paddle.load(path, num_workers=n)."""

from wiring import Tree, patch


@patch(
    kind='permanent',
    checked='2026-11-29',
    since='3.2.0',
    mark=('framework/io_utils.py', '_load_pickle'),
    tests=(
        'legacy_test/ctrl_c_case.py',
        'legacy_test/nth_fault_case.py',
        'legacy_test/num_workers_case.py',
        'legacy_test/pressure_case.py',
        'legacy_test/sanitizer_case.py',
        'legacy_test/test_paddle_load_counts.py',
        'legacy_test/test_paddle_load_damaged.py',
        'legacy_test/test_paddle_load_faults.py',
        'legacy_test/test_paddle_load_interrupts.py',
        'legacy_test/test_paddle_load_lifetimes.py',
        'legacy_test/test_paddle_load_nth_fault.py',
        'legacy_test/test_paddle_load_num_workers.py',
        'legacy_test/test_paddle_load_pressure.py',
        'legacy_test/test_paddle_load_sanitizer.py',
        'legacy_test/test_paddle_load_signals.py',
    ),
)
def load_num_workers(tree: Tree) -> None:
    """io: read tensor payloads in parallel in paddle.load

    paddle.load(path, num_workers=n) finds the large payloads in the pickle
    stream, has n threads read them into the objects that the unpickler
    then takes, and unpickles all the rest as ever. The serial load stays
    the default and the definition of right: whatever is unusual falls back
    to it, so values and errors are the same.

    Unpickling reads each payload in one thread into memory that was never
    touched before, at a fraction of what memory can do; large checkpoints
    wait for it.

    Measured with 2 GiB on tmpfs, NumPy results, 2 cores, 4 workers,
    medians of 5 in one process: tensors of 256 MiB 976 -> 123 ms, 16 MiB
    986 -> 184 ms, 2 MiB 1010 -> 592 ms. Without the option nothing changes.
    """
    tree.refuse(
        'framework/parallel_pickle_load.py',
        why='it has a num_workers of its own, which ours would fight',
    )
    tree.add(
        'framework/io_utils.py',
        why='the loader stands beside the other readers of pickled files',
    )
    io = tree.add(
        'framework/io.py',
        only=('_load_pickle', '_resolve_num_workers', '_LoadOptions'),
        why='load needs the loader, type checkers need its option',
    )

    config = io.function('_parse_load_config')
    config.append_item(
        'supported_configs',
        "'num_workers'",
        why='options that are not listed are refused',
    )
    config.insert_before_return(
        "inner_config.num_workers = _resolve_num_workers(\n"
        "    configs.get('num_workers', 1)\n"
        ")",
        why='every form of load checks its options here, before any I/O',
    )

    for name in 'load', '_legacy_load':
        io.function(name).swap_call(
            # Trees with a restricted unpickler call it in the same place.
            [
                "pickle.load(f, encoding='latin1')",
                "safe_load_pickle(f, encoding='latin1')",
            ],
            '_load_pickle(\n    {callee}, path, f, config.num_workers\n)',
            why='the one place where an ordinary file is unpickled; '
            'the call that stood there stays the serial path',
        )

    io.function('load').add_doc_option(
        'num_workers (int|None): How many threads read the data of one file.\n'
        'None, 0 and 1 read serially. With more, a file given by its path,\n'
        'saved with protocol 4 or 5 (or by safetensors, and loaded with\n'
        'return_numpy) and holding several MB of tensors is read in\n'
        'parallel; anything else is read serially. The result is the same\n'
        'either way. Default 1.',
        why='the options of load are documented in its docstring',
    )
