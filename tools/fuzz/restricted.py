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

"""Unpickling that reaches a few harmless names, whatever a file says.

The unpickler is the C one of a plain load; only names are looked up here. What
would show memory that nobody wrote to is refused or filled, for two loads of
it differ. Every name that a file asks for is recorded.
"""

from __future__ import annotations

import codecs
import collections
import pickle
import types
from typing import Any

import numpy as np
from numpy._core import multiarray, numeric
from paddle.distributed.flex_checkpoint.dcp import metadata

# So many codecs are enough; any other name would be imported.
_ENCODINGS = ('latin1', 'latin-1', 'utf-8', 'ascii')

# A file may ask for any number of zeros; memory is checked elsewhere.
_MAX_BYTES = 1 << 24

asked: list[tuple[str, str]] = []


class _Callable:
    """A function that a file cannot change."""

    __slots__ = ('_function',)

    def __init__(self, function):
        self._function = function

    def __call__(self, *args):
        return self._function(*args)

    def __setstate__(self, state):
        raise TypeError(f'{self._function.__name__} takes no state')


class _Subtype(_Callable):
    """Stands for numpy.ndarray, which files only pass around."""

    __slots__ = ()


def _no_call(*args):
    raise TypeError('numpy.ndarray is not called')


NDARRAY = _Subtype(_no_call)


def _reconstruct(subtype, shape, code):
    array = multiarray._reconstruct(
        np.ndarray if subtype is NDARRAY else subtype, (0,), code
    )
    if shape not in ((0,), 0):
        raise ValueError(f'expected the shape (0,), but received {shape!r}')
    return array


def _encode(text, encoding='utf-8', *errors):
    if encoding not in _ENCODINGS:
        raise LookupError(f'unknown encoding: {encoding}')
    return codecs.encode(text, encoding, *errors)


def _sized(kind):
    def make(*args):
        if args and isinstance(args[0], int) and args[0] > _MAX_BYTES:
            raise MemoryError
        return kind(*args)

    make.__name__ = kind.__name__
    return make


NAMES: dict[tuple[str, str], Any] = {
    ('collections', 'OrderedDict'): collections.OrderedDict,
    ('_codecs', 'encode'): _Callable(_encode),
    ('numpy', 'ndarray'): NDARRAY,
    ('numpy', 'dtype'): np.dtype,
}
for _module in 'builtins', '__builtin__':
    for _kind in tuple, set, frozenset, complex:
        NAMES[_module, _kind.__name__] = _kind
    for _kind in bytes, bytearray:
        NAMES[_module, _kind.__name__] = _Callable(_sized(_kind))
    NAMES[_module, 'len'] = len
for _module in 'numpy._core', 'numpy.core':
    NAMES.update(
        {
            (f'{_module}.multiarray', '_reconstruct'): _Callable(_reconstruct),
            (f'{_module}.multiarray', 'scalar'): _Callable(multiarray.scalar),
            (f'{_module}.numeric', '_frombuffer'): _Callable(
                numeric._frombuffer
            ),
        }
    )
_OWN_CLASSES = (
    metadata.Metadata,
    metadata.LocalTensorIndex,
    metadata.LocalTensorMetadata,
)
for _kind in _OWN_CLASSES:
    NAMES[_kind.__module__, _kind.__name__] = _kind
_ATTRIBUTES = {kind: dict(vars(kind)) for kind in _OWN_CLASSES}


def reset_classes() -> None:
    """Undoes what files did to the attributes of Paddle's classes."""
    for kind, attributes in _ATTRIBUTES.items():
        current = dict(vars(kind))
        for name in current.keys() - attributes.keys():
            delattr(kind, name)
        for name, value in attributes.items():
            if current.get(name) is not value:
                setattr(kind, name, value)


class RestrictedUnpickler(pickle.Unpickler):
    """Knows the names above; the loader looks for a class of this name."""

    def find_class(self, module: str, name: str) -> Any:
        """What a name stands for; records it."""
        asked.append((module, name))
        try:
            return NAMES[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f'{module}.{name} is not allowed'
            ) from None


def load(f: Any, **options: Any) -> Any:
    """Stands for `pickle.load`."""
    return RestrictedUnpickler(f, **options).load()


def module() -> types.ModuleType:
    """Stands for the module `pickle`, with the restricted `load`."""
    stand_in = types.ModuleType('pickle')
    stand_in.__dict__.update(vars(pickle))
    stand_in.load = load
    return stand_in
