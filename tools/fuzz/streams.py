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

"""Pickle streams as lists of pieces: one opcode with its argument each."""

from __future__ import annotations

import contextlib
import pickletools
import struct

FRAME = b'\x95'
PROTO = b'\x80'

# BINBYTES, BINBYTES8 and BYTEARRAY8: what a reader may take for a payload.
PAYLOAD_OPCODES = {b'B': '<I', b'\x8e': '<Q', b'\x96': '<Q'}

_LENGTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: '<B',
    pickletools.TAKEN_FROM_ARGUMENT4: '<i',
    pickletools.TAKEN_FROM_ARGUMENT4U: '<I',
    pickletools.TAKEN_FROM_ARGUMENT8U: '<Q',
}

# Format of the length that follows an opcode, by opcode.
LENGTH_FORMATS = {
    opcode.code.encode('latin1'): _LENGTHS[opcode.arg.n]
    for opcode in pickletools.opcodes
    if opcode.arg is not None and opcode.arg.n in _LENGTHS
}
LENGTH_FORMATS[FRAME] = '<Q'


def parse(data: bytes) -> list[bytes]:
    """The pieces of a complete pickle; what follows STOP is left out."""
    starts = [position for _, _, position in pickletools.genops(data)]
    stop = starts[-1] + 1
    ends = [*starts[1:], stop]
    return [data[start:end] for start, end in zip(starts, ends, strict=True)]


def parse_most(data: bytes) -> list[bytes]:
    """The pieces of a damaged pickle, the last of them all that is unclear."""
    starts = []
    with contextlib.suppress(Exception):  # errors of any class
        for _, _, at in pickletools.genops(data):
            starts.append(at)
    starts = starts or [0]
    ends = [*starts[1:], len(data)]
    return [data[start:end] for start, end in zip(starts, ends, strict=True)]


def frame(length_bytes: int) -> bytes:
    """The piece that begins a frame, of whatever length it claims."""
    return FRAME + (length_bytes % 2**64).to_bytes(8, 'little')


def payload(data: bytes, opcode: bytes = b'B') -> bytes:
    """The piece that pushes bytes or, with BYTEARRAY8, a bytearray."""
    return opcode + struct.pack(PAYLOAD_OPCODES[opcode], len(data)) + data


def is_payload(piece: bytes, min_bytes: int = 0) -> bool:
    """Whether a piece is a payload of that size at least."""
    return piece[:1] in PAYLOAD_OPCODES and len(piece) >= min_bytes


def reframed(pieces: list[bytes], target_bytes: int | None) -> list[bytes]:
    """The same pieces in other frames.

    Args:
        pieces(list[bytes]): A stream.
        target_bytes(int|None): Payloads from this size on lie between frames,
            and a frame ends when it has it. None: there are no frames.

    Returns:
        list[bytes]: The new stream.
    """
    bare = [piece for piece in pieces if piece[:1] != FRAME]
    if target_bytes is None:
        return bare
    result, content, content_bytes = [], [], 0
    for piece in bare:
        # A frame around PROTO is no harm, but picklers leave it out.
        outside = piece[:1] == PROTO or is_payload(piece, target_bytes)
        if content and (outside or content_bytes >= target_bytes):
            result += [frame(content_bytes), *content]
            content, content_bytes = [], 0
        if outside:
            result.append(piece)
        else:
            content.append(piece)
            content_bytes += len(piece)
    if content:
        result += [frame(content_bytes), *content]
    return result


def repaired(pieces: list[bytes], target_bytes: int) -> list[bytes]:
    """The same stream, each frame as long as what follows it.

    A frame ends where another one or a payload of `target_bytes` begins.
    """
    result, open_frame, content_bytes = [], None, 0
    for piece in [*pieces, FRAME]:
        if piece[:1] == FRAME or is_payload(piece, target_bytes):
            if open_frame is not None:
                result[open_frame] = frame(content_bytes)
            open_frame, content_bytes = None, 0
            if piece[:1] == FRAME:
                open_frame = len(result)
                result.append(piece)
                continue
        result.append(piece)
        content_bytes += len(piece)
    return result[:-1]
