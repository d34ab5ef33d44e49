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

"""Damage to pickles: to opcodes, lengths, frames, memo indices, bytes.

Each kind of damage is a function of a source of random numbers, the pieces of
a stream (changed in place) and those of another stream.
"""

from __future__ import annotations

import pickletools
import struct
from typing import TYPE_CHECKING

from .streams import (
    FRAME,
    LENGTH_FORMATS,
    PAYLOAD_OPCODES,
    frame,
    payload,
    repaired,
)

if TYPE_CHECKING:
    import random

# Where readers change their ways: a pickler's frames, the least payload of a
# plan, windows and gaps of the readers.
THRESHOLD_BYTES = (256, 512, 4096, 64 * 1024, 256 * 1024)

# What a length or a number may be put to; large ones reach past every file,
# and past what the formats can express with a sign.
EXTREMES = (
    0, 1, 2, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1,
    2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip

NAMES = (
    b'builtins\nlen', b'builtins\ntuple', b'builtins\nbytearray',
    b'__builtin__\nbytes', b'_codecs\nencode', b'collections\nOrderedDict',
    b'numpy\nndarray', b'numpy\ndtype', b'numpy._core.multiarray\nscalar',
    b'numpy.core.multiarray\n_reconstruct',
    b'numpy._core.multiarray\n_reconstruct', b'numpy._core.numeric\n_frombuffer',
    b'paddle.distributed.flex_checkpoint.dcp.metadata\nMetadata',
    b'paddle.distributed.flex_checkpoint.dcp.metadata\nLocalTensorIndex',
    b'paddle.distributed.checkpoint.metadata\nLocalTensorMetadata',
)  # fmt: skip

# Keys and fields that mean something to a reader.
TEXTS = (
    b'', b'w', b'a', b'b', b'f4', b'O', b'V5', b'<', b'>', b'|', b'latin1',
    b'C', b'F', b'K', b'StructuredToParameterName@@', b'UnpackBigParamInfor@@',
    b'state_dict_metadata', b'storage_metadata', b'flat_mapping',
    b'0_0.distcp', b'1_0.distcp', b'local_shape', b'(N\x97.', b'\xff',
)  # fmt: skip

_MEMO_OPCODES = b'hjqr\x94'  # BINGET LONG_BINGET BINPUT LONG_BINPUT MEMOIZE
_INT_FORMATS = {b'K': '<B', b'M': '<H', b'J': '<i'}
_TEXT_FORMATS = {b'\x8c': '<B', b'X': '<I', b'U': '<B', b'C': '<B'}
_OPCODES = {
    opcode.code.encode('latin1'): opcode for opcode in pickletools.opcodes
}
_CODES = sorted(_OPCODES)

# Opcodes that readers treat in ways of their own.
_ODD_PIECES = (
    b'\x97', b'\x98', b'\x80\x04', b'\x80\x05', b'\x80\x02', b'.', b'0', b'1',
    b'(', b'2', b'\x94', b'N', b'Pname\n', b'Q', b'\x82\x01', b'I12\n',
    b'\x96' + bytes(8), b'\x96\x03' + bytes(7) + b'abc', b'B' + bytes(4),
    b'\x8e' + bytes(8), FRAME + bytes(8), b'h\x00', b'r\xff\xff\x00\x00',
)  # fmt: skip


def _packed(number, form):
    size = struct.calcsize(form)
    return (number % 256**size).to_bytes(size, 'little')


def _number_near(rng, number, total_bytes):
    kind = rng.random()
    if kind < 0.4:
        return number + rng.choice((-1, 1))
    if kind < 0.6:
        return rng.randrange(16)
    if kind < 0.75:
        return number + rng.randrange(-64, 64)
    if kind < 0.85:
        return total_bytes + rng.randrange(-16, 16)
    return rng.choice(EXTREMES)


def _places(pieces, codes):
    return [i for i, piece in enumerate(pieces) if piece[:1] in codes]


def _any_place(rng, pieces):
    return rng.randrange(len(pieces)) if pieces else 0


def new_piece(rng: random.Random) -> bytes:
    """Any opcode, with an argument of its form."""
    if rng.random() < 0.4:
        return rng.choice(_ODD_PIECES)
    code = rng.choice(_CODES)
    argument = _OPCODES[code].arg
    if code in LENGTH_FORMATS:
        data = rng.choice((b'', b'N', b'(((', b'\x97' * 30, b'\x8c\x04N2(N'))
        return code + _packed(len(data), LENGTH_FORMATS[code]) + data
    if argument is None:
        return code
    if argument.n == pickletools.UP_TO_NEWLINE:
        if argument.name.endswith('_pair'):
            return code + rng.choice(NAMES) + b'\n'
        return code + rng.choice((b'', b'1', b'0', b"'a'", b'1.5')) + b'\n'
    number = rng.choice((0, 1, 2, 0x28, 0x97, rng.choice(EXTREMES)))
    return code + _packed(number, f'<{argument.n}s')


# ---- damage to opcodes


def replace_opcode(rng, pieces, _):
    at = _any_place(rng, pieces)
    pieces[at] = rng.choice(_CODES) + pieces[at][1:]


def replace_piece(rng, pieces, _):
    pieces[_any_place(rng, pieces)] = new_piece(rng)


def insert_piece(rng, pieces, other):
    piece = new_piece(rng) if rng.random() < 0.7 else rng.choice(other)
    pieces.insert(_any_place(rng, pieces), piece)


def insert_beside_payload(rng, pieces, _):
    places = _places(pieces, PAYLOAD_OPCODES)
    at = rng.choice(places) if places else _any_place(rng, pieces)
    pieces.insert(at + rng.randrange(2), new_piece(rng))


def remove_pieces(rng, pieces, _):
    at = _any_place(rng, pieces)
    del pieces[at : at + rng.choice((1, 1, 1, 2, 5))]


def repeat_pieces(rng, pieces, _):
    at = _any_place(rng, pieces)
    pieces[at:at] = pieces[at : at + rng.choice((1, 1, 2, 8))]


def swap_pieces(rng, pieces, _):
    first, second = _any_place(rng, pieces), _any_place(rng, pieces)
    pieces[first], pieces[second] = pieces[second], pieces[first]


def splice(rng, pieces, other):
    """The head of one stream, then the tail of another."""
    pieces[_any_place(rng, pieces) :] = other[_any_place(rng, other) :]


def graft(rng, pieces, other):
    """Some pieces of one stream in the midst of another."""
    start = _any_place(rng, other)
    at = _any_place(rng, pieces)
    pieces[at : at + rng.randrange(3)] = other[start : start + 6]


def append_stream(rng, pieces, other):
    pieces += other if rng.random() < 0.7 else [bytes(rng.randrange(1, 9))]


# ---- damage to arguments


def change_length(rng, pieces, _):
    places = _places(pieces, LENGTH_FORMATS)
    if places:
        at = rng.choice(places)
        code, form = pieces[at][:1], LENGTH_FORMATS[pieces[at][:1]]
        size = struct.calcsize(form)
        length = int.from_bytes(pieces[at][1 : 1 + size], 'little')
        total_bytes = sum(map(len, pieces))
        length = _number_near(rng, length, total_bytes)
        pieces[at] = code + _packed(length, form) + pieces[at][1 + size :]


def change_number(rng, pieces, _):
    places = _places(pieces, _INT_FORMATS)
    if places:
        at = rng.choice(places)
        form = _INT_FORMATS[pieces[at][:1]]
        number = int.from_bytes(pieces[at][1:], 'little')
        number = _number_near(rng, number, len(pieces))
        pieces[at] = pieces[at][:1] + _packed(number, form)


def change_text(rng, pieces, other):
    places = _places(pieces, _TEXT_FORMATS)
    if places:
        at = rng.choice(places)
        form = _TEXT_FORMATS[pieces[at][:1]]
        text = rng.choice(TEXTS)
        sources = _places(other, pieces[at][:1])
        if sources and rng.random() < 0.5:
            pieces[at] = other[rng.choice(sources)]
            return
        pieces[at] = pieces[at][:1] + struct.pack(form, len(text)) + text


def change_name(rng, pieces, _):
    places = _places(pieces, (b'c', b'i'))
    if places:
        at = rng.choice(places)
        pieces[at] = pieces[at][:1] + rng.choice(NAMES) + b'\n'


def change_memo(rng, pieces, _):
    places = [i for i, p in enumerate(pieces) if p[0] in _MEMO_OPCODES]
    if not places:
        return
    at = rng.choice(places)
    index = rng.choice((rng.randrange(64), len(places) - 1, len(places), 2**20))
    pieces[at] = rng.choice(
        (
            b'h' + _packed(index, '<B'), b'j' + _packed(index, '<I'),
            b'q' + _packed(index, '<B'), b'r' + _packed(index, '<I'),
            b'\x94', pieces[rng.choice(places)],
        )
    )  # fmt: skip


def resize_payload(rng, pieces, _):
    """A payload of a size at which readers change their ways."""
    places = _places(pieces, PAYLOAD_OPCODES)
    at = rng.choice(places) if places else _any_place(rng, pieces)
    length = rng.choice(THRESHOLD_BYTES[:-1]) + rng.choice((-1, 0, 1))
    if rng.random() < 0.02:
        length = THRESHOLD_BYTES[-1]
    data = (b'(N\x97.' * (length // 4 + 1))[:length]
    pieces[at] = payload(data, rng.choice(sorted(PAYLOAD_OPCODES)))


def retype_payload(rng, pieces, _):
    places = _places(pieces, PAYLOAD_OPCODES)
    if places:
        at = rng.choice(places)
        size = struct.calcsize(PAYLOAD_OPCODES[pieces[at][:1]])
        opcode = rng.choice(sorted(PAYLOAD_OPCODES))
        pieces[at] = payload(pieces[at][1 + size :], opcode)


# ---- damage to frames


def remove_frame(rng, pieces, _):
    places = _places(pieces, (FRAME,))
    if places:
        del pieces[rng.choice(places)]


def insert_frame(rng, pieces, _):
    """A frame that ends at, before or behind the border of an opcode."""
    at = _any_place(rng, pieces)
    end = at + rng.randrange(8)
    length = sum(map(len, pieces[at:end])) + rng.choice((0, 0, 0, -1, 1, 3))
    pieces.insert(at, frame(max(0, length)))


def frame_payload(rng, pieces, _):
    places = _places(pieces, PAYLOAD_OPCODES)
    if places:
        at = rng.choice(places)
        shift = rng.choice((0, 0, -1, 1, 8))
        pieces.insert(at, frame(len(pieces[at]) + shift))


def nest_frame(rng, pieces, _):
    places = _places(pieces, (FRAME,))
    if places:
        at = rng.choice(places)
        length = int.from_bytes(pieces[at][1:], 'little')
        length += rng.choice((0, 9, 9, -9, 1))
        pieces.insert(at, frame(max(0, length)))


# ---- damage to bytes


def _byte_place(rng, data, pieces):
    """A place near the beginning of a piece, seldom within a payload."""
    start = sum(map(len, pieces[: _any_place(rng, pieces)]))
    return min(start + rng.randrange(12), len(data) - 1)


def damage_bytes(rng: random.Random, data: bytes, pieces: list[bytes]) -> bytes:
    """Cut, flip, shift, insert or delete bytes.

    Args:
        rng(random.Random): The source of random numbers.
        data(bytes): A stream.
        pieces(list[bytes]): What it is made of, to find its borders.

    Returns:
        bytes: The damaged stream.
    """
    if not data:
        return data
    kind = rng.random()
    at = _byte_place(rng, data, pieces)
    if kind < 0.2:
        return data[:at]
    changed = bytearray(data)
    if kind < 0.5:
        changed[at] ^= 1 << rng.randrange(8)
    elif kind < 0.65:
        changed[at] = (changed[at] + rng.choice((-1, 1))) % 256
    elif kind < 0.75:
        changed[at] = ord(rng.choice(_CODES))
    elif kind < 0.85:
        del changed[at : at + rng.choice((1, 1, 2, 9))]
    elif kind < 0.95:
        changed[at:at] = new_piece(rng)
    else:
        changed += rng.choice((b'\0', b'.', data[-20:]))
    return bytes(changed)


# How often each kind of damage is done.
WEIGHTS = {
    replace_opcode: 3,
    replace_piece: 3,
    insert_piece: 6,
    insert_beside_payload: 5,
    remove_pieces: 4,
    repeat_pieces: 2,
    swap_pieces: 2,
    splice: 3,
    graft: 3,
    append_stream: 2,
    change_length: 8,
    change_number: 6,
    change_text: 6,
    change_name: 2,
    change_memo: 6,
    resize_payload: 4,
    retype_payload: 3,
    remove_frame: 4,
    insert_frame: 6,
    frame_payload: 5,
    nest_frame: 4,
}


def mutate(
    rng: random.Random,
    pieces: list[bytes],
    other: list[bytes],
    target_bytes: int,
) -> bytes:
    """A damaged stream.

    Args:
        rng(random.Random): The source of random numbers.
        pieces(list[bytes]): The stream to damage; it is left as it is.
        other(list[bytes]): One to take parts from.
        target_bytes(int): From which size on payloads lie between the frames
            of the stream, to set its frames right again.

    Returns:
        bytes: The stream after one or more kinds of damage; one in fifty has
        none.
    """
    damaged = list(pieces)
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    only_bytes = rng.random() < 0.15
    if rng.random() < 0.02:
        return b''.join(damaged)
    if not only_bytes:
        for kind in rng.choices(kinds, weights, k=rng.choice((1, 1, 1, 2, 4))):
            if damaged:
                kind(rng, damaged, other)
        # With lengths that are wrong, most streams end at once.
        if rng.random() < 0.6:
            damaged = repaired(damaged, target_bytes)
    data = b''.join(damaged)
    if only_bytes or rng.random() < 0.1:
        for _ in range(rng.choice((1, 1, 2))):
            data = damage_bytes(rng, data, damaged)
    return data
