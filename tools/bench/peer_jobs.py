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

"""What the children of `peers.py` do: save and load, each in its own way.

What is missing of the peers is left out; `PEERS_VARIABLE` names a directory to
look in for what this environment does not have.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import sys
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import paddle

from . import load_jobs
from .common import Sample, peak_memory, reset_peak_memory
from .layout import verify_arrays
from .published import DeferredFile, FillingFile, load_with

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .layout import Layout

PEERS_VARIABLE = 'PADDLE_BENCH_PEERS'

# A page that was just written or read may be held for a moment longer.
EVICTIONS = 5

# Of a mapped file, one byte of each is read to have it all.
PAGE_BYTES = os.sysconf('SC_PAGE_SIZE')


def _imported(name: str) -> Any:
    """A module, or in its place the words why there is none."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # a broken installation is no peer either
        return f'{type(error).__name__}: {error}'


# Behind all else: what this environment has itself is used.
if os.environ.get(PEERS_VARIABLE, '') not in ('', *sys.path):
    sys.path.append(os.environ[PEERS_VARIABLE])

# Imported before the children fork, so that no load pays for it.
torch = _imported('torch')
safetensors = _imported('safetensors')
safetensors_numpy = _imported('safetensors.numpy')
safetensors_torch = _imported('safetensors.torch')


def missing_peers() -> dict[str, str]:
    """Why a peer is left out, by its name."""
    peers = {
        'torch': torch,
        'safetensors': safetensors_numpy,
        'safetensors with torch': safetensors_torch,
    }
    found = {name: why for name, why in peers.items() if isinstance(why, str)}
    if 'safetensors' not in found and 'backend' not in (
        inspect.signature(safetensors_numpy.load_file).parameters
    ):
        found['safetensors pread'] = (
            f'safetensors {safetensors.__version__} has no choice of backends'
        )
    return found


def peer_facts() -> dict[str, str]:
    """The versions of the peers that are there."""
    return {
        name: str(module.__version__)
        for name, module in (('torch', torch), ('safetensors', safetensors))
        if not isinstance(module, str)
    }


# ---- files


def model_shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Of a model of paddle.vision and its Adam state after a step.

    The demo saves the same two; they are one flat dict here, because that is
    all that safetensors knows.
    """
    paddle.seed(0)
    model = getattr(paddle.vision.models, name)()
    adam = paddle.optimizer.Adam(parameters=model.parameters())
    # The smallest images that get through five halvings.
    model(paddle.rand([2, 3, 64, 64])).mean().backward()
    adam.step()
    states = {'model': model.state_dict(), 'optimizer': adam.state_dict()}
    return {
        f'{part}.{key}': tuple(value.shape)
        for part, state in states.items()
        for key, value in state.items()
        if isinstance(value, paddle.Tensor)
    }


def save_torch(layout: Layout) -> None:
    """Writes the tensors with torch.save."""
    tensors = {
        key: torch.from_numpy(np.array(value))
        for key, value in layout.expected().items()
    }
    torch.save(tensors, layout.path)


def save_safetensors(layout: Layout) -> None:
    """Writes the tensors with safetensors."""
    tensors = {key: np.array(v) for key, v in layout.expected().items()}
    safetensors_numpy.save_file(tensors, layout.path)


# ---- loads: (path, **options) -> tensors by their keys


def load_paddle(path: str, **options: Any) -> Any:
    """`paddle.load`, with our options or without."""
    return paddle.load(path, **options)


def _load_published(file_class: type, path: str, num_workers: int, **options):
    def load_pickle(serial_load, path, f, _):
        return load_with(file_class, f, num_workers)

    with mock.patch('paddle.framework.io._load_pickle', load_pickle):
        return paddle.load(path, **options)


def load_deferred(path: str, num_workers: int, **options: Any) -> Any:
    """`paddle.load` with payloads that are filled after the parse."""
    return _load_published(DeferredFile, path, num_workers, **options)


def load_filling(path: str, num_workers: int, **options: Any) -> Any:
    """`paddle.load` with payloads that are filled one after the other."""
    return _load_published(FillingFile, path, num_workers, **options)


def load_torch(path: str, **options: Any) -> Any:
    """`torch.load`."""
    return torch.load(path, weights_only=True, **options)


def load_safetensors_torch(path: str, **options: Any) -> Any:
    """`safetensors.torch.load_file`, which gives tensors of torch."""
    return safetensors_torch.load_file(path, **options)


def load_safetensors_numpy(path: str, **options: Any) -> Any:
    """`safetensors.numpy.load_file`."""
    return safetensors_numpy.load_file(path, **options)


def touch_pages(array: np.ndarray) -> int:
    """Reads a byte of every page of an array's memory: how many there were."""
    words = array.reshape(-1).view(np.uint8)[::PAGE_BYTES]
    words.max(initial=0)
    return words.size


def timed_load(
    load: Callable[..., Any],
    layout: Layout,
    kind: str,
    is_mapped: bool = False,
    **options: Any,
) -> Sample:
    """Loads once, and then verifies all that came out.

    Args:
        load(callable): (path, **options) -> the tensors by their keys.
        layout(Layout): what to load.
        kind(str): of the tensors: 'numpy', 'paddle' or 'torch'.
        is_mapped(bool, optional): it gives views of the file, of which every
            page is then read to have loaded it. Default: False.
        options(Any): of the loader.

    Returns:
        Sample: with the peak memory. If mapped, notes are what there was
        before a page was read: `seconds` and `peak_bytes`.

    Raises:
        VerificationError: a key, a type, a shape or a byte is wrong.
    """
    gc.collect()
    before_bytes = reset_peak_memory()
    begin = time.perf_counter()
    loaded = load(str(layout.path), **options)
    seconds = time.perf_counter() - begin
    peak_bytes = peak_memory() - before_bytes
    notes = None
    if is_mapped:
        notes = {'seconds': seconds, 'peak_bytes': peak_bytes}
        begin = time.perf_counter()
        for array in _arrays(loaded, kind).values():
            touch_pages(array)
        seconds += time.perf_counter() - begin
        peak_bytes = peak_memory() - before_bytes
    if kind == 'torch':
        verified_bytes = verify_arrays(_arrays(loaded, kind), layout)
    else:
        verified_bytes = load_jobs.verify(
            loaded, layout, np.ndarray if kind == 'numpy' else paddle.Tensor
        )
    return Sample(seconds, verified_bytes, peak_bytes, notes)


def _arrays(loaded: dict[str, Any], kind: str) -> dict[str, np.ndarray]:
    """The memory of tensors, as numpy sees it."""
    views = {
        'numpy': lambda value: value,
        'torch': lambda value: value.numpy(),
        'paddle': np.from_dlpack,
    }
    return {key: views[kind](value) for key, value in loaded.items()}


# ---- cold files


def evict(path: Path) -> bool | None:
    """Lets the system forget what it holds of a file on a disk.

    Returns:
        bool|None: whether it has; None where nothing tells.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)  # what is not written yet cannot be forgotten
        for _ in range(EVICTIONS):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            cached = _any_cached(fd)
            if not cached:
                break
        # Asking may have started to read what lies there.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    return None if cached is None else not cached


def _any_cached(fd: int) -> bool | None:
    size_bytes = os.fstat(fd).st_size
    found = [_is_cached(fd, size_bytes * part // 8) for part in range(8)]
    return None if None in found else any(found)


def _is_cached(fd: int, offset: int) -> bool | None:
    try:
        os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except (OSError, AttributeError):
        return None
    return True
