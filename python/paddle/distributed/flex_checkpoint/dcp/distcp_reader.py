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
the frames of the stream, and a placeholder is given out for each. The rest,
about 100 bytes per tensor, goes through an unpickler that knows a handful of
names, each bound to a stand-in of this module. The stream is walked to its
STOP, so a file that was not written to its end does not pass. There are two
ways to walk it: files as picklers write them in protocols 4 and 5 are read
compactly (``compact_pickle``); in any other, the payloads are indexed and
replaced by an opcode for a buffer from outside (``_PayloadStream``).

Nothing that a file names is imported or called. Memory goes with the small
part of the file (protocol 2: all of it, for there payloads are text), except
that the unpickler's memo takes 16 bytes for each number up to the largest one
that the file stores under: 64 GiB at most, if the file is made or damaged so.

Not here: whether the shapes are the wanted ones is ``fast_resumable``'s part.
"""

from __future__ import annotations

import copyreg
import io
import itertools
import math
import operator
import pickle

from paddle.framework.io_utils import (
    _index_payloads,
    _open_regular,
    _Payload,
    _PayloadStream,
    _raise_signalled,
)

from .compact_pickle import (
    TOKEN,
    BytearrayPayload,
    CountedFile,
    read_compact,
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

# Types are compared, not asked for: bool is another one than int.
_INT_ONLY, _BOOL_ONLY = frozenset((int,)), frozenset((bool,))
_STR_ONLY, _TUPLE_ONLY = frozenset((str,)), frozenset((tuple,))

_NAME_TABLE_KEY = 'StructuredToParameterName@@'


class DistcpFormatError(ValueError):
    """A file is not a complete pickle of a flat dict of plain tensors."""


class _Inert:
    """Takes no state: without this, BUILD sets what attributes a file names."""

    __slots__ = ()

    def __setstate__(self, state):
        raise TypeError(f'{type(self).__name__} takes no state')


def _only_called(function):
    """An object that can be called and nothing else: no type, no attributes."""
    body = {'__slots__': (), '__call__': staticmethod(function)}
    return type(function.__name__, (_Inert,), body)()


class _Blob(_Inert):
    """Stands for bytes of which number and place in the file are known.

    Args:
        length_bytes (int): Their number.
        payload (_Payload|None): Their place. None if the file spells them as
            text.
    """

    __slots__ = ('length_bytes', 'payload')
    __hash__ = None  # as that of a bytearray; no key of a tensor is bytes

    def __init__(self, length_bytes, payload=None):
        self.length_bytes = length_bytes
        self.payload = payload

    def __len__(self):
        return self.length_bytes


# A _Payload stands for itself until all is checked, for there are many.
_NOT_READ_TYPES = frozenset((_Blob, _Payload, BytearrayPayload))
_DATA_TYPES = _NOT_READ_TYPES | {bytes, bytearray}


# Of a dtype of plain items, but for the byte order.
_DTYPE_STATE = [3, None, None, None, -1, -1, 0]
_DTYPE_STATE_TYPES = list(map(type, _DTYPE_STATE))


class _Dtype:
    """Stands for a numpy dtype; `item_bytes` is None if it is no plain one."""

    __slots__ = ('code', 'item_bytes')

    def __init__(self, code, align, copy):
        self.code = code
        self.item_bytes = _ITEM_BYTES.get(code)
        if not {type(align), type(copy)} <= {int, bool}:
            self.item_bytes = None

    def __setstate__(self, state):
        version, byte_order, *rest = state
        if (
            type(state) is not tuple
            or byte_order not in ('<', '|')
            or [version, *rest] != _DTYPE_STATE
            or list(map(type, [version, *rest])) != _DTYPE_STATE_TYPES
        ):
            self.item_bytes = None


class _Array:
    """Stands for an ndarray; has no attributes until it gets its state.

    Attributes:
        shape (tuple[int, ...]): Not checked before the key is known, nor are
            the others.
        dtype (_Dtype): Of its items.
        is_fortran (bool): Whether its items are in column-major order.
        data (_Payload|_Blob|bytes|bytearray): The payload.
    """

    __slots__ = ('shape', 'dtype', 'data', 'is_fortran')
    __hash__ = None

    def __setstate__(self, state):
        version, shape, dtype, is_fortran, data = state
        if type(state) is not tuple:
            raise ValueError('expected a tuple for the state of an array')
        if version != 1 or type(version) is not int:
            raise ValueError(f'expected version 1, but received {version!r}')
        if type(data) is bytearray or getattr(data, 'is_bytearray', False):
            raise ValueError('expected bytes, but received a bytearray')
        self._set(shape, dtype, is_fortran, data)

    def _set(self, shape, dtype, is_fortran, data):
        if hasattr(self, 'data'):
            raise ValueError('expected one state of an array')
        self.shape, self.dtype = shape, dtype
        self.is_fortran, self.data = is_fortran, data


_ARRAY_ONLY, _DTYPE_ONLY = frozenset((_Array,)), frozenset((_Dtype,))
_fields_of = operator.attrgetter('shape', 'dtype', 'data', 'is_fortran')

_NDARRAY = _Inert()


class _Noting(_Inert):
    """Called like a function; notes what it makes, in case no dict gets it."""

    __slots__ = ('_made',)

    def __init__(self, made):
        self._made = made


class _Reconstruct(_Noting):
    __slots__ = ()

    def __call__(self, subtype, shape, code):
        if subtype is not _NDARRAY:
            raise TypeError('expected ndarray, but received another subtype')
        if shape != (0,) or type(code) is not bytes or code != b'b':
            raise TypeError(f'expected (0,) and a code, but received {shape}')
        array = _Array()
        self._made.append(array)
        return array


class _FromBuffer(_Noting):
    __slots__ = ()

    def __call__(self, data, dtype, shape, order, axes=None):
        if order not in ('C', 'F', 'K'):
            raise ValueError(f'expected C, F or K, but received {order!r}')
        if order == 'K':
            # The shape is the one before the axes are permuted.
            if axes is None or sorted(axes) != list(range(len(shape))):
                raise ValueError(f'expected a permutation, but received {axes}')
            shape = tuple(shape[axis] for axis in axes)
        array = _Array()
        array._set(shape, dtype, order != 'C', data)
        self._made.append(array)
        return array


class _MakeDtype(_Noting):
    __slots__ = ()

    def __call__(self, *args):
        dtype = _Dtype(*args)
        self._made.append(dtype)
        return dtype


@_only_called
def _encode(text, encoding):
    """Protocol 2 has no bytes; they are text, to be encoded on loading."""
    if encoding not in ('latin1', 'latin-1'):
        raise ValueError(f'expected latin1, but received {encoding!r}')
    data = text.encode('latin-1')
    return data if len(data) == 1 else _Blob(len(data))


@_only_called
def _empty_bytes():
    return _Blob(0)


_STAND_INS = {
    ('numpy', 'ndarray'): _NDARRAY,  # is only passed around
    ('_codecs', 'encode'): _encode,
    ('__builtin__', 'bytes'): _empty_bytes,
}


class _ShapeUnpickler(pickle.Unpickler):
    """Imports nothing; knows numpy arrays and dicts of them."""

    def __init__(self, file, **options):
        super().__init__(file, encoding='latin1', **options)
        self._arrays, self._dtypes = [], []
        reconstruct = _Reconstruct(self._arrays)
        from_buffer = _FromBuffer(self._arrays)
        # Modules of numpy 2 and of numpy 1.
        self._stand_ins = {
            ('numpy', 'dtype'): _MakeDtype(self._dtypes),
            ('numpy._core.multiarray', '_reconstruct'): reconstruct,
            ('numpy.core.multiarray', '_reconstruct'): reconstruct,
            ('numpy._core.numeric', '_frombuffer'): from_buffer,
            ('numpy.core.numeric', '_frombuffer'): from_buffer,
            **_STAND_INS,
        }
        # What the process has registered for EXT opcodes goes past find_class
        # once it is cached.
        copyreg.clear_extension_cache()

    def find_class(self, module, name):
        try:
            return self._stand_ins[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                'expected nothing but numpy arrays, '
                f'but received {module}.{name}'
            ) from None

    def load(self):
        """The dict that a file holds, of all arrays that it makes."""
        value = super().load()
        if type(value) is not dict:
            raise ValueError(
                f'expected a dict, but received {type(value).__name__}'
            )
        values = value.values()
        if not (
            len(self._arrays) <= len(values)
            and all(map(operator.is_, self._arrays, values))
            or {*map(id, self._arrays)}.issubset(map(id, values))
        ):
            raise ValueError('expected no array beside those of the dict')
        # An odd one that is used is refused later, together with its key.
        used = {id(getattr(array, 'dtype', None)) for array in self._arrays}
        if any(
            dtype.item_bytes is None and id(dtype) not in used
            for dtype in self._dtypes
        ):
            raise ValueError('expected no odd dtype beside those of arrays')
        return value


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
    if type(array.is_fortran) is not bool:
        raise ValueError(
            'expected an order that is a bool, '
            f'but received {type(array.is_fortran).__name__}'
        )
    if type(data) not in _DATA_TYPES:
        raise ValueError(
            f'expected bytes of a payload, but received {type(data).__name__}'
        )
    expected_bytes = math.prod(shape) * dtype.item_bytes
    length_bytes = (
        data.length_bytes if type(data) in _NOT_READ_TYPES else len(data)
    )
    if length_bytes != expected_bytes:
        raise ValueError(
            f'expected {expected_bytes} bytes for shape {shape} of '
            f'{dtype.code}, but received {length_bytes}'
        )


def _are_tensors(arrays):
    """Whether `_check_tensor` passes all of a dict, at a quarter of its time.

    Everything is looked at column by column, in loops of C.
    """
    values = arrays.values()
    if not _ARRAY_ONLY.issuperset(map(type, values)):
        return False
    try:
        shapes, dtypes, payloads, orders = zip(*map(_fields_of, values))
    except (AttributeError, ValueError):  # one has no state; there is none
        return not arrays
    if (
        not _TUPLE_ONLY.issuperset(map(type, shapes))
        or not _DTYPE_ONLY.issuperset(map(type, dtypes))
        or not _DATA_TYPES.issuperset(map(type, payloads))
        or not _BOOL_ONLY.issuperset(map(type, orders))
        or max(map(len, shapes)) > _MAX_DIMS
    ):
        return False
    sizes = list(itertools.chain.from_iterable(shapes))
    items_bytes = [dtype.item_bytes for dtype in dtypes]
    return (
        _INT_ONLY.issuperset(map(type, sizes))
        and min(sizes, default=0) >= 0
        and None not in items_bytes
        and [
            data.length_bytes if type(data) in _NOT_READ_TYPES else len(data)
            for data in payloads
        ]
        == list(map(operator.mul, map(math.prod, shapes), items_bytes))
    )


def _check_arrays(arrays, path):
    """Refuse a dict in which a key is no text, or an array no tensor."""
    if _STR_ONLY.issuperset(map(type, arrays)) and _are_tensors(arrays):
        return
    for key, array in arrays.items():
        if type(key) is not str:
            raise DistcpFormatError(
                f'{path}: expected keys of type str, '
                f'but received {type(key).__name__}'
            )
        try:
            _check_tensor(array)
        except (AttributeError, ValueError) as error:
            raise DistcpFormatError(f'{path}: {key!r}: {error}') from error


class _CompactUnpickler(_ShapeUnpickler):
    """For the stream of a file without its large payloads."""

    def __init__(self, stream, payloads):
        super().__init__(io.BytesIO(stream))
        self._payloads = iter(payloads)

    def persistent_load(self, token):
        if token != TOKEN:
            raise pickle.UnpicklingError('expected no persistent id')
        return next(self._payloads)

    def load(self):
        """What the file holds; None if that is not certain."""
        try:
            value = super().load()
        except Exception as error:  # damaged pickles raise any error
            _raise_signalled(error)
            return None
        return value if next(self._payloads, self) is self else None


def _walk_compact(file):
    """Unpickle a file of the usual form; None if it is another or fails."""
    compact = read_compact(file)
    return compact and _CompactUnpickler(*compact).load()


def _walk(file):
    """Unpickle a file into stand-ins, up to its very end."""
    gaps = {}
    payloads = _index_payloads(file.read_gap, file.file_bytes, gaps=gaps)
    stream = _PayloadStream(file.read_at, file.file_bytes, payloads, gaps=gaps)

    def blobs():
        while True:
            payload = stream.next_payload()
            yield (
                BytearrayPayload(*payload) if payload.is_bytearray else payload
            )

    value = _ShapeUnpickler(stream, buffers=blobs()).load()
    if stream.read(1) or file.read_at(file.file_bytes - 1, 1) != pickle.STOP:
        raise ValueError('expected the file to end with STOP')
    return value


def _checked_arrays(fd, path):
    """The arrays by key, the table of names, and how many bytes were read."""
    file = CountedFile(fd)
    try:
        arrays = _walk_compact(file)
        if arrays is None:
            arrays = _walk(file)
    except OSError:
        raise
    except Exception as error:  # damaged pickles raise errors of any class
        raise DistcpFormatError(
            f'{path}: expected a complete pickle of tensors, '
            f'but received {type(error).__name__}: {error}'
        ) from error
    names = None
    if _NAME_TABLE_KEY in arrays:
        keys = set(arrays)
        names = arrays.pop(_NAME_TABLE_KEY)
        # `paddle.load` looks up what it names.
        if type(names) is not dict or not names.keys() <= keys:
            raise DistcpFormatError(
                f'{path}: expected a table of names of its tensors, '
                f'but received {type(names).__name__} with others'
            )
    _check_arrays(arrays, path)
    return arrays, names, file.bytes_read


def _stand_ins(fd, path):
    """What an open file holds, by key, and how many bytes were read for it.

    Args:
        fd (int): The open file.
        path (str): Its name, for errors.

    Returns:
        tuple[dict[str, _Array], object, int]: The arrays, each of a tensor's
        dtype and the number of bytes that its shape implies, payloads as
        `_Blob`; the table of names, None if there is none; the number of
        bytes.
    """
    arrays, names, bytes_read = _checked_arrays(fd, path)
    for array in arrays.values():
        if isinstance(array.data, _Payload):
            payload = _Payload(*array.data)
            array.data = _Blob(payload.length_bytes, payload)
    return arrays, names, bytes_read


def _scan(path):
    """The shapes, and how many bytes were read to find them."""
    with _open_regular(path) as f:
        arrays, _, bytes_read = _checked_arrays(f.fileno(), path)
    return {key: array.shape for key, array in arrays.items()}, bytes_read


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
