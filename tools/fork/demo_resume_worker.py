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

"""One rank of the demo's checkpoint: save, then restore in both ways.

Started twice by `paddle.distributed.launch`, with the fork tree in PYTHONPATH;
each rank writes what it found to `RANK.json` in the folder it is given.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import paddle
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp import load_state_dict as loader

# 1,000 layers of 1.05 GB in small: enough entries that unpickling the metadata
# shows, and tensors that are read from outside the pickle's frames.
KEYS = 1000
SHAPE = (128, 256)


def state(value: float) -> dict[str, paddle.Tensor]:
    """A replicated state: every rank has all tensors whole."""
    return {
        f'layer_{number}.weight': paddle.full(SHAPE, value + number)
        for number in range(KEYS)
    }


def bytes_read() -> int:
    """All bytes that this process has read so far (proc(5), rchar)."""
    try:
        text = Path('/proc/self/io').read_text()
    except OSError:  # not Linux
        return 0
    return int(text.split('rchar: ')[1].split()[0])


def restore(path: str, fast: bool, num_workers: int) -> dict[str, Any]:
    """Restore once; tell the decision, its cost, and whether all is right."""
    decide, told = loader._resumable_locally, {}

    def watched(*args: object) -> bool:
        before, begin = bytes_read(), time.perf_counter()
        answer = decide(*args)
        told['decision_seconds'] = time.perf_counter() - begin
        told['decision_bytes'] = bytes_read() - before
        told['decision'] = 'local' if answer else 'reshard'
        return answer

    target = state(-1.0 - KEYS)
    dist.barrier()
    with mock.patch.object(loader, '_resumable_locally', watched):
        begin = time.perf_counter()
        dist.load_state_dict(
            target, path, fast_resumable_check=fast, num_workers=num_workers
        )
        told['seconds'] = time.perf_counter() - begin
    wanted = state(0.0)
    told['equal'] = all(
        tensor.numpy().tobytes() == wanted[key].numpy().tobytes()
        for key, tensor in target.items()
    )
    return told


def main() -> None:
    """Saves, and restores as often as asked, the ways in turn."""
    folder, num_workers, runs = Path(sys.argv[1]), *map(int, sys.argv[2:])
    dist.init_parallel_env()
    path = str(folder / 'checkpoint')
    dist.save_state_dict(state(0.0), path, save_replicas=True)
    dist.barrier()
    ways: dict[str, list[dict[str, Any]]] = {'stock': [], 'fast': []}
    for _ in range(runs):
        ways['stock'].append(restore(path, False, 1))
        ways['fast'].append(restore(path, True, num_workers))
    report = folder / f'{dist.get_rank()}.json'
    report.write_text(json.dumps(ways))


if __name__ == '__main__':
    main()
