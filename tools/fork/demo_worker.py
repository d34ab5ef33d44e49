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

"""One load (or the saving of the example) in a process of its own.

Runs under `.venv` with the fork tree in PYTHONPATH; its last line on stdout
is a JSON object for `demo`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle

if TYPE_CHECKING:
    from collections.abc import Iterator

# Touches so much memory, and gives it back by ending.
SETTLING = '''
import mmap, sys
chunk = bytes(1 << 20)
count = max(1, int(sys.argv[1]) >> 20)
memory = mmap.mmap(-1, count << 20, flags=mmap.MAP_PRIVATE)
if hasattr(mmap, 'MADV_HUGEPAGE'):
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass
for _ in range(count):
    memory.write(chunk)
'''

PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes, bytearray)


def save_example(path: Path) -> dict[str, int]:
    """Saves Wide ResNet-50-2 and Adam after one real step of training."""
    paddle.seed(0)
    model = paddle.vision.models.wide_resnet50_2()
    adam = paddle.optimizer.Adam(parameters=model.parameters())
    # The smallest images that get through five halvings.
    model(paddle.rand([2, 3, 64, 64])).mean().backward()
    adam.step()
    state = {'model': model.state_dict(), 'optimizer': adam.state_dict()}
    paddle.save(state, str(path))
    tensors = [
        value for _, value in leaves(state) if isinstance(value, paddle.Tensor)
    ]
    return {
        'tensors': len(tensors),
        'payload_bytes': sum(
            tensor.size * tensor.element_size() for tensor in tensors
        ),
    }


def settle_memory(size_bytes: int) -> None:
    """Lets the load that follows at once have memory of the machine's own.

    A virtual machine gets memory from its host when it is first touched, a
    second or more per GiB, and gives back what is free for some seconds, huge
    pages first (Documentation/mm/free_page_reporting.rst of Linux). Which load
    meets that is chance, so none should.
    """
    subprocess.run(
        [sys.executable, '-S', '-c', SETTLING, str(size_bytes)], check=True
    )


def load(path: Path, result: str, num_workers: int) -> dict[str, Any]:
    """Loads once, tells time and peak memory, then digests the content."""
    options: dict[str, Any] = {'return_numpy': result == 'numpy'}
    # The serial load is asked for in upstream's own words.
    if num_workers:
        options['num_workers'] = num_workers
    base_bytes = memory_bytes('VmRSS')
    begin = time.perf_counter()
    loaded = paddle.load(str(path), **options)
    seconds = time.perf_counter() - begin
    peak_bytes = memory_bytes('VmHWM')
    content, opaque = digest(loaded)
    return {
        'seconds': seconds,
        'peak_bytes': peak_bytes,
        'base_bytes': base_bytes,
        'content': content,
        'opaque': opaque,
    }


def memory_bytes(field: str) -> int:
    """A memory field of this process; the peak where there is no /proc."""
    try:
        text = Path('/proc/self/status').read_text()
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak  # bytes on macOS, which is where this is reached
    for line in text.splitlines():
        if line.startswith(f'{field}:'):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f'/proc/self/status: expected {field}, found none')


def leaves(value: object, name: str = '') -> Iterator[tuple[str, object]]:
    """All values inside dicts, lists and tuples, with a name each."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f'{name}/{key}')
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from leaves(item, f'{name}/{index}')
    else:
        yield name, value


def digest(loaded: object) -> tuple[dict[str, str], int]:
    """Type, shape and SHA-256 of each value; and how many are opaque."""
    content, opaque = {}, 0
    for name, value in leaves(loaded):
        kind = type(value).__name__
        if isinstance(value, paddle.Tensor):
            content[name] = f'{kind} {value.dtype} ' + digest_array(
                value.numpy()
            )
        elif isinstance(value, (np.ndarray, np.generic)):
            content[name] = f'{kind} ' + digest_array(np.asarray(value))
        elif isinstance(value, PLAIN_TYPES):
            sha256 = hashlib.sha256(repr(value).encode()).hexdigest()
            content[name] = f'{kind} {sha256}'
        else:
            content[name] = kind
            opaque += 1
    return content, opaque


def digest_array(array: np.ndarray) -> str:
    """Type, shape, order and SHA-256 of an array's bytes."""
    flat = array.reshape(-1, order='A').view(np.uint8)
    order = 'F' if np.isfortran(array) else 'C'
    sha256 = hashlib.sha256(flat.data).hexdigest()
    return f'{array.dtype.str} {array.shape} {order} {sha256}'


def main() -> None:
    """Reads the arguments that `demo` gives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('action', choices=('save', 'load'))
    parser.add_argument('path', type=Path)
    parser.add_argument('--result', choices=('numpy', 'tensor'))
    parser.add_argument('--num-workers', type=int, default=0)
    parser.add_argument('--settled-bytes', type=int, default=0)
    options = parser.parse_args()
    if options.action == 'save':
        report = save_example(options.path)
    else:
        if options.settled_bytes:
            settle_memory(options.settled_bytes)
        report = load(options.path, options.result, options.num_workers)
    print(json.dumps(report))


if __name__ == '__main__':
    main()
