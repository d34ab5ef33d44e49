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

"""load_state_dict(..., fast_resumable_check=True), load_state_dict_metadata."""

from wiring import Tree, patch

DCP = 'distributed/flex_checkpoint/dcp'


@patch(
    kind='permanent',
    checked='2026-11-29',
    since='3.3.0',
    mark=(f'{DCP}/load_state_dict.py', '_resumable_locally'),
    needs=(f'{DCP}/utils.py', 'check_resumable_locally'),
    tests=(
        'flex_checkpoint/fast_resumable_case.py',
        'flex_checkpoint/ranks_case.py',
        'flex_checkpoint/test_compact_pickle.py',
        'flex_checkpoint/test_fast_resumable.py',
        'flex_checkpoint/test_fast_resumable_choice.py',
        'flex_checkpoint/test_fast_resumable_damaged.py',
        'flex_checkpoint/test_fast_resumable_storage.py',
        'flex_checkpoint/test_fast_resumable_two_ranks.py',
        'flex_checkpoint/test_load_state_dict_metadata.py',
        'flex_checkpoint/test_memo_upkeep.py',
        'flex_checkpoint/test_rank_failures.py',
        'flex_checkpoint/test_scan_tensor_shapes.py',
    ),
)
def fast_resumable_check(tree: Tree) -> None:
    """dcp: decide on local restore without the whole metadata

    load_state_dict asks first whether every rank can restore from its own
    file. Where every tensor was saved whole, the first part of the metadata
    file and the names and shapes in the rank's own data file tell; split
    tensors are looked up in all of it, with stand-ins for its entries; what
    neither recognises goes to the stock check. Of a large file of whole
    tensors, what lies behind the first entries is taken on trust; all else
    is answered as the stock check answers it.

    An error of one rank is one of all: it takes the place of that rank's
    answer in the gather of answers, and after a local restore, or before a
    reshard, all ranks meet in one more. The others raise a RuntimeError that
    tells rank, path and cause, where they would have waited, or gone on
    alone. fast_resumable_check=False is the way back from all of this.

    Where no metadata was loaded for a local restore, the garbage collector,
    which may take 50 ms, does not run behind it.

    load_state_dict_metadata(path), which reads that first part alone, is
    public.

    The metadata file has an entry for each tensor and rank, and each rank
    spends seconds to tens of seconds on unpickling all of them for one
    boolean.

    Measured with 4,000 tensors saved by 128 ranks, 2 cores, medians of 5:
    2,299 -> 22 ms and 275 -> 6 MiB of memory in a fresh process; split over
    the ranks, 10,324 -> 2,296 ms and 797 -> 175 MiB. The gather more takes
    0.6 ms with 2 ranks (gloo), 7 ms with 4.
    """
    tree.new(
        f'{DCP}/metadata_reader.py',
        why='reads the part of a metadata file that the decision needs',
    )
    tree.new(
        f'{DCP}/compact_pickle.py',
        why='reads a data file without its tensors',
    )
    tree.new(
        f'{DCP}/distcp_reader.py',
        why='finds names and shapes in what was read',
    )
    tree.new(
        f'{DCP}/memo_upkeep.py',
        why='keeps the memo small while metadata is unpickled',
    )
    tree.new(
        f'{DCP}/storage_reader.py',
        why='reads all of a metadata file where tensors are split, but makes '
        'less of it',
    )
    tree.new(
        f'{DCP}/rank_failures.py',
        why='tells the other ranks what one fails with',
    )
    tree.new(f'{DCP}/fast_resumable.py', why='the decision')

    dcp = tree.add(
        f'{DCP}/load_state_dict.py',
        why='the choice of check needs the metadata manager of this module',
    )
    top = dcp.function('load_state_dict')
    top.add_parameter(
        'fast_resumable_check: bool = True',
        why='False is the way back to the stock check',
    )
    top.add_doc_args(
        'fast_resumable_check(bool): Whether to decide on a local restore '
        'from a part of the metadata and of each rank\'s own file, where '
        'these tell enough, else from the whole metadata without an index of '
        'it. An error of one rank then becomes an error of all: the others '
        'raise a RuntimeError that tells rank, path and cause. False always '
        'loads and indexes the whole metadata, and tells no other rank. It '
        'must be the same on all ranks. Default is True.',
        why='it is public',
    )
    dcp.add_import(
        'from .fast_resumable import require_bool', why='it is called here'
    )
    top.insert_at_start(
        "require_bool('fast_resumable_check', fast_resumable_check)",
        why='a wrong value must be told before any rank reads or waits',
    )
    top.replace_statements(
        [
            'paddle.load',
            '_metadata_manager.set_metadata_list',
            'check_resumable_locally',
        ],
        'resumable_locally = _resumable_locally(\n'
        '    path,\n'
        '    os.path.join(path, metadata_files[0]),\n'
        '    state_dict,\n'
        '    use_dist,\n'
        '    process_group,\n'
        '    fast_resumable_check,\n'
        ')',
        why='the stock check needs the metadata loaded, the fast one does '
        'not: the choice comes before both',
    )

    top.enclose_statements(
        ['get_checkpoint_files', 'len(metadata_files)'],
        'failure_told(\n'
        '    path, process_group, use_dist and fast_resumable_check\n'
        ')',
        why='the others must not wait for a rank that finds no checkpoint',
    )
    top.enclose_statements(
        ['logger.info', 'local_load_state_dict'],
        'outcome_shared(\n'
        '    path, process_group, use_dist and fast_resumable_check\n'
        ')',
        why='no rank may go on with what it restored where another failed',
    )
    top.guard_statements(
        ['_metadata_manager.clear', 'gc.collect'],
        'not _metadata_manager.is_metadata_list_empty()',
        after='local_load_state_dict',
        why='the collector takes 50 ms and more, and frees nothing where no '
        'metadata was loaded',
    )

    local = dcp.function('local_load_state_dict')
    local.insert_at_start(
        'started_s = time.perf_counter()',
        why='how long a local restore takes is logged',
    )
    local.wrap_call(
        'state_dict.items',
        '_log_restored({call}, path, use_dist, started_s)',
        why='the loop over the state dict ends the restore',
    )

    init = tree.add(
        'distributed/__init__.py', why='load_state_dict_metadata is public'
    )
    init.append_item(
        '__all__',
        '"load_state_dict_metadata"',
        after="'load_state_dict'",
        why='load_state_dict_metadata is public',
    )
