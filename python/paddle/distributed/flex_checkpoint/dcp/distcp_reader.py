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
"""Find the shapes of the tensors in a ``.distcp`` file without their bytes.

``.distcp`` files are pickles of ``{key: ndarray}``. Large payloads lie outside
the frames of the stream: they are indexed, replaced by an opcode for a buffer
from outside, and a placeholder of the payload's length is given out for each.
The rest, about 130 bytes per tensor, goes through an unpickler that knows a
handful of names, each bound to a stand-in of this module. The stream is
walked to its STOP, so a file that was not written to its end does not pass.

Nothing that a file names is imported or called. Memory is bounded by the
small part of the file (protocol 2: all of it, for there payloads are text).

Not here: whether the shapes are the wanted ones is ``fast_resumable``'s part.
"""

from __future__ import annotations

import copyreg
import math
import os
import pickle

from paddle.framework.io_utils import (
    _index_payloads,
    _open_regular,
    _PayloadStream,
    _read_at,
)

# The dtypes that Tensor.numpy() gives (bfloat16 travels as u2, float8 as i1 or
# u1); anything else in a .distcp file is no tensor.
_ITEM_BYTES = {
    'b1': 1,
    **{f'{kind}{size}': size for kind in 'iu' for size in (1, 2, 4, 8)},
    **{f'f{size}': size for size in (2, 4, 8)},
    **{f'c{size}': size for size in (8, 16)},
}

# The most that numpy allows (NPY_MAXDIMS of numpy 2).
_MAX_DIMS = 64

_INT_ONLY = frozenset((int,))  # bool is another type

# What is read behind each payload while indexing. The opcodes up to the next
# one take 80 to 150 bytes and a key; longer ones cost one read more.
_GAP_BYTES = 256

_NAME_TABLE_KEY = 'StructuredToParameterName@@'


class DistcpFormatError(ValueError):
    """A file is not a complete pickle of a flat dict of plain tensors."""


class _Inert:
    """Takes no state: without this, BUILD sets what attributes a file names."""

    __slots__ = ()

    def __setstate__(self, state):
        raise TypeError(f'{type(self).__name__} takes no state')


class _Function(_Inert):
    """Stands for a function or a class that a file may call."""

    __slots__ = ('_function',)

    def __init__(self, function):
        self._function = function

    def __call__(self, *args):
        return self._function(*args)


class _Blob(_Inert):
    """Stands for bytes of which number and place in the file are known."""

    __slots__ = ('length_bytes', 'payload')

    def __init__(self, length_bytes, payload=None):
        self.length_bytes = length_bytes
        self.payload = payload

    def __len__(self):
        return self.length_bytes


_DATA_TYPES = frozenset((_Blob, bytes, bytearray))


class _Dtype:
    """Stands for a numpy dtype; `item_bytes` is None if it is no plain one."""

    __slots__ = ('code', 'item_bytes')

    def __init__(self, code, *_):
        self.code = code
        self.item_bytes = _ITEM_BYTES.get(code)

    def __setstate__(self, state):
        version, byte_order, *rest = state
        if (
            version != 3
            or byte_order not in ('<', '|')
            or rest != [None, None, None, -1, -1, 0]
        ):
            self.item_bytes = None


class _Array:
    """Stands for an ndarray. Not checked before its key is known."""

    __slots__ = ('shape', 'dtype', 'data', 'is_fortran')

    def __init__(self, shape=None, dtype=None, data=None, is_fortran=False):
        self.shape, self.dtype, self.data = shape, dtype, data
        self.is_fortran = is_fortran

    def __setstate__(self, state):
        version, self.shape, self.dtype, self.is_fortran, self.data = state
        if version != 1:
            raise ValueError(f'expected version 1, but received {version!r}')


def _reconstruct(subtype, shape, code):
    if subtype is not _STAND_INS['numpy', 'ndarray']:
        raise TypeError('expected ndarray, but received another subtype')
    if shape != (0,) or len(code) != 1:
        raise TypeError(f'expected (0,) and a code, but received {shape}')
    return _Array()


def _frombuffer(data, dtype, shape, order, axes=None):
    if order not in ('C', 'F', 'K'):
        raise ValueError(f'expected C, F or K, but received {order!r}')
    if order == 'K' and axes is not None:
        # The shape is the one before the axes are permuted.
        if sorted(axes) != list(range(len(shape))):
            raise ValueError(f'expected a permutation, but received {axes}')
        return _Array(tuple(shape[axis] for axis in axes), dtype, data, True)
    return _Array(shape, dtype, data, order != 'C')


def _encode(text, encoding):
    """Protocol 2 has no bytes; they are text, to be encoded on loading."""
    if encoding not in ('latin1', 'latin-1'):
        raise ValueError(f'expected latin1, but received {encoding!r}')
    return _Blob(len(text.encode('latin-1')))


def _empty_bytes():
    return _Blob(0)


# Modules of numpy 2 and of numpy 1; `ndarray` is only passed around.
_STAND_INS = {
    ('numpy', 'ndarray'): _Inert(),
    ('numpy', 'dtype'): _Function(_Dtype),
    ('numpy._core.multiarray', '_reconstruct'): _Function(_reconstruct),
    ('numpy.core.multiarray', '_reconstruct'): _Function(_reconstruct),
    ('numpy._core.numeric', '_frombuffer'): _Function(_frombuffer),
    ('numpy.core.numeric', '_frombuffer'): _Function(_frombuffer),
    ('_codecs', 'encode'): _Function(_encode),
    ('__builtin__', 'bytes'): _Function(_empty_bytes),
}


class _ShapeUnpickler(pickle.Unpickler):
    """Imports nothing; knows numpy arrays and dicts of them."""

    def find_class(self, module, name):
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                'expected nothing but numpy arrays, '
                f'but received {module}.{name}'
            ) from None


class _ScannedFile:
    """Bytes of an open file at any offset, counted."""

    def __init__(self, fd):
        self._fd = fd
        self.file_bytes = os.fstat(fd).st_size
        self.bytes_read = 0

    def read_gap(self, offset, length):
        gap = os.pread(self._fd, min(length, _GAP_BYTES), offset)
        self.bytes_read += len(gap)
        return gap

    def read_at(self, offset, length):
        data = _read_at(self._fd, offset, length)
        self.bytes_read += len(data)
        return data


def _check_tensor(array):
    """Refuse what is no tensor or has not the payload that its shape implies."""
    if type(array) is not _Array:
        raise ValueError(
            f'expected an array, but received {type(array).__name__}'
        )
    shape, dtype, data = array.shape, array.dtype, array.data
    if type(dtype) is not _Dtype or dtype.item_bytes is None:
        raise ValueError(
            'expected the dtype of a tensor, '
            f'but received {str(getattr(dtype, "code", None))[:16]}'
        )
    if (
        type(shape) is not tuple
        or len(shape) > _MAX_DIMS
        or not _INT_ONLY.issuperset(map(type, shape))
        or min(shape, default=0) < 0
    ):
        raise ValueError(f'expected a shape of at most {_MAX_DIMS} sizes')
    if type(data) not in _DATA_TYPES:
        raise ValueError(
            f'expected bytes of a payload, but received {type(data).__name__}'
        )
    expected_bytes = math.prod(shape) * dtype.item_bytes
    if len(data) != expected_bytes:
        raise ValueError(
            f'expected {expected_bytes} bytes for shape {shape} of '
            f'{dtype.code}, but received {len(data)}'
        )


def _walk(file):
    """Unpickle a file into stand-ins, up to its very end."""
    gaps = {}
    payloads = _index_payloads(file.read_gap, file.file_bytes, gaps=gaps)
    stream = _PayloadStream(file.read_at, file.file_bytes, payloads, gaps=gaps)

    def blobs():
        while True:
            payload = stream.next_payload()
            yield _Blob(payload.length_bytes, payload)

    # What the process has registered for EXT opcodes goes past find_class once
    # it is cached.
    copyreg.clear_extension_cache()
    value = _ShapeUnpickler(stream, encoding='latin1', buffers=blobs()).load()
    if stream.read(1) or file.read_at(file.file_bytes - 1, 1) != pickle.STOP:
        raise ValueError('expected the file to end with STOP')
    return value


def _stand_ins(fd, path):
    """What an open file holds, by key, and how many bytes were read for it.

    Args:
        fd (int): The open file.
        path (str): Its name, for errors.

    Returns:
        tuple[dict[str, _Array], object, int]: The arrays, each of a tensor's
        dtype and the number of bytes that its shape implies; the table of
        names, None if there is none; the number of bytes.
    """
    file = _ScannedFile(fd)
    try:
        tensors = _walk(file)
    except OSError:
        raise
    except Exception as error:  # damaged pickles raise errors of any class
        raise DistcpFormatError(
            f'{path}: expected a complete pickle of tensors, '
            f'but received {type(error).__name__}: {error}'
        ) from error
    if type(tensors) is not dict:
        raise DistcpFormatError(
            f'{path}: expected a dict, but received {type(tensors).__name__}'
        )
    names = tensors.pop(_NAME_TABLE_KEY, None)
    for key, array in tensors.items():
        if type(key) is not str:
            raise DistcpFormatError(
                f'{path}: expected keys of type str, '
                f'but received {type(key).__name__}'
            )
        try:
            _check_tensor(array)
        except ValueError as error:
            raise DistcpFormatError(f'{path}: {key!r}: {error}') from error
    return tensors, names, file.bytes_read


def _scan(path):
    """The shapes, and how many bytes were read to find them."""
    with _open_regular(path) as f:
        tensors, _, bytes_read = _stand_ins(f.fileno(), path)
    return {key: array.shape for key, array in tensors.items()}, bytes_read


def scan_tensor_shapes(path: str) -> dict[str, tuple[int, ...]]:
    """
    Find the shape of every tensor in a ``.distcp`` file without reading the
    tensors; those under 64 KiB, which share frames with the rest, are read.

    Args:
        path(str): The file, e.g. ``./checkpoint/0_0.distcp``.

    Returns:
        dict[str, tuple[int, ...]]: The shape of each key, in file order.

    Raises:
        OSError: If the file cannot be read.
        DistcpFormatError: If the file is not a complete pickle of a flat dict of plain tensors, or a payload has not the length that shape and dtype imply; a ValueError.
    """
    return _scan(path)[0]
