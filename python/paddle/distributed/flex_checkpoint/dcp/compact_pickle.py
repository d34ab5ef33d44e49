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
"""Read a pickle without its large payloads, as a pickle that has tokens there.

It is for files as the pickler writes them in protocols 4 and 5: frames, each
with at most one payload of 64 KiB or more behind it. What lies in the frames
is put into a single one, in memory; between any two of them, and before the
STOP of the last one, stands a token: ``BINPERSID`` on bytes that the file does
not have. An unpickler runs through that without a call for each opcode.

Why nothing is taken for what it is not: to have a token answered, the
unpickler needs its bytes on the stack. They stand in the compact stream only
where a token was put, and an opcode that pushes just these has its argument
begin there: it is the token's own, for the two bytes before them are no length
of any other. So it was executed at the end of what the file has before it, and
the next opcode is the token's BINPERSID, which uses the bytes up. Execution
goes forward only; each token is answered at most once, and in order. If all
of them are answered, the unpickler was at an opcode at each end of a frame,
and no argument went past one. It then executed what the file itself has: the
frames from beginning to end, in each place of a payload one opcode that pushes
a single object, as the payload's does, and the STOP that is its last byte.
Frames within frames, which readers of files treat differently, are declined.

Not here: what the pickle means, and files of any other form
(``distcp_reader``).
"""

from __future__ import annotations

import os
import pickle
import re
import struct

from paddle.framework.io_utils import (
    _MIN_PAYLOAD_BYTES,
    _PAYLOAD_OPCODES,
    _Payload,
    _read_at,
)

# What is read behind each payload. The opcodes up to the next one take 60 to
# 150 bytes, most of it the key; longer ones cost one read more.
GAP_BYTES = 192

_PROTOCOLS = (b'\x80\x04', b'\x80\x05')
_FRAME, _BINBYTES, _BYTEARRAY8 = b'\x95B\x96'

# An opcode and the length behind it; with BINBYTES it is a short one.
_HEADER, _SHORT_HEADER = struct.Struct('<BQ'), struct.Struct('<BI')

# Its first byte is not repeated, so that no two places of it can overlap.
TOKEN = b'\xffpayload'
_PAYLOAD_TOKEN = (
    pickle.SHORT_BINBYTES + bytes([len(TOKEN)]) + TOKEN + pickle.BINPERSID
)
_BOUNDARY_TOKEN = _PAYLOAD_TOKEN + pickle.POP

# There are some copies of it for a moment. 100,000 large tensors take half.
_MAX_COMPACT_BYTES = 16 * 1024 * 1024

# A frame that could lie within a compact stream, or bytes that look like one.
_INNER_FRAME = re.compile(rb'\x95.{4}\0{4}', re.DOTALL)


class BytearrayPayload(_Payload):
    """Stands for a bytearray, which cannot be hashed."""

    __slots__ = ()
    __hash__ = None


class CountedFile:
    """Bytes of an open file at any offset, counted.

    Args:
        fd (int): The open file.

    Attributes:
        file_bytes (int): Its size.
        bytes_read (int): How many were read.
    """

    def __init__(self, fd):
        self.fd = fd
        self.file_bytes = os.fstat(fd).st_size
        self.bytes_read = 0

    def read_gap(self, offset, length):
        """So many bytes, or what usually lies between two payloads."""
        gap = os.pread(self.fd, min(length, GAP_BYTES), offset)
        self.bytes_read += len(gap)
        return gap

    def read_at(self, offset, length):
        """So many bytes, fewer only at the end of the file."""
        data = _read_at(self.fd, offset, length)
        self.bytes_read += len(data)
        return data


def read_compact(file):
    """Read a file's frames, and put tokens in place of all else.

    Args:
        file (CountedFile): The file.

    Returns:
        tuple[bytes, list]|None: The compact stream, and what its tokens stand
        for, in order: a `_Payload`, or None for the boundary of frames. Tokens
        are the persistent ids equal to `TOKEN`; the stream was the file's only
        if all are asked for. None if the file is of another form, or has more
        than 16 MiB in its frames.
    """
    protocol = file.read_at(0, 2)
    if protocol not in _PROTOCOLS:
        return None
    parts, payloads = [], []
    try:
        content = _read_frames(file, parts, payloads)
    except struct.error:  # the file ends amid a header
        return None
    if content[-1:] != pickle.STOP:
        return None
    parts += content[:-1], _BOUNDARY_TOKEN, pickle.STOP
    payloads.append(None)
    body = b''.join(parts)
    if body.count(TOKEN) != len(payloads) or _INNER_FRAME.search(body):
        return None
    return protocol + _HEADER.pack(_FRAME, len(body)) + body, payloads


def _read_frames(file, parts, payloads):
    """Collect all frames but the last one, which is returned.

    What is returned is empty if the file is of another form.
    """
    pread, fd, file_bytes = os.pread, file.fd, file.file_bytes
    new_tuple, header_bytes = tuple.__new__, _HEADER.size
    offset, room_bytes = 2, _MAX_COMPACT_BYTES
    # Each step is taken for each tensor; thousands of them are 2 us each.
    while True:
        gap = pread(fd, GAP_BYTES, offset)
        file.bytes_read += len(gap)
        code, length = _HEADER.unpack_from(gap)
        end = header_bytes + length
        room_bytes -= end
        if code != _FRAME or room_bytes < 0:
            return b''
        missing = end + header_bytes - len(gap)
        if missing > 0:
            gap += file.read_at(offset + len(gap), missing)
        content = gap[header_bytes:end]
        offset += end
        if offset >= file_bytes:
            return content if offset == file_bytes else b''
        code, length = _SHORT_HEADER.unpack_from(gap, end)
        if code == _FRAME:
            parts += content, _BOUNDARY_TOKEN
            payloads.append(None)
            continue
        start = offset + _SHORT_HEADER.size
        if code != _BINBYTES:
            code, length = _HEADER.unpack_from(gap, end)
            start = offset + header_bytes
        if (
            code not in _PAYLOAD_OPCODES
            or not _MIN_PAYLOAD_BYTES <= length <= file_bytes
        ):
            return b''
        parts += content, _PAYLOAD_TOKEN
        is_bytearray = code == _BYTEARRAY8
        fields = offset, start, length, is_bytearray
        payload_class = BytearrayPayload if is_bytearray else _Payload
        payloads.append(new_tuple(payload_class, fields))
        offset = start + length
