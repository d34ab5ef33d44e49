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
"""Unpickle a stream of frames without keeping all of it in the memo.

A pickle may refer to anything again that it has memoized, so the unpickler
keeps all of it to the end: of metadata a dict, a string and two tuples for
each entry, several times what is made of them. Here frames of our own are
read between those of the file. The first gets what some slots of the memo
hold and hands it out as a persistent id; the second puts something else there:

- in place of a dict an object that is good for nothing: an entry has its
  state by then, and no pickler refers to that again;
- in place of a string, or a tuple of plain values, the first one that was
  equal.

What is loaded is the same, or there is an error. A stream that does use such
a dict again meets an object that is no container, cannot be hashed, and is not
of a type that anyone accepts. Equal values are alike to all who only compare
and hash them. Which slots are looked at does not matter to that; they are
those that the entries which are built must have filled, two for each, so none
is empty in what a pickler wrote.

Frames of our own come between opcodes: the unpickler asks for them as it does
for those of the file, an opcode of one byte, a length of eight, the content,
and every other read is refused. An argument that a frame cuts off is never
such a row of reads (the opcode would be its first byte, 0x95, as length or
value, and nothing of eight bytes follows).

Errors are ValueErrors, for the unpickler takes an UnpicklingError of its file
for the end of it. Not here: what a stream means (``storage_reader``).
"""

from __future__ import annotations

import itertools
import pickle

import numpy as np

# So many entries make two more frames worth their while; a frame of a file,
# of 64 KiB, has about a thousand.
_MIN_UNSEEN = 400

_FRAME_HEADER_BYTES = 9

# What is in a slot of the memo.
_OTHER, _DICT, _STRING, _TUPLE, _STAND_IN = range(5)

# Hashing looks into what a tuple holds, without a limit to the depth.
_PLAIN_TYPES = frozenset({int, str, bool, float, type(None)})

# The slot is pushed (LONG_BINGET) or filled (LONG_BINPUT).
_SLOT = np.dtype([('opcode', 'S1'), ('slot', '<u4')])

# A slot is filled with what another one holds.
_COPY = np.dtype(
    [('get', 'S1'), ('first', '<u4'), ('put', 'S1'), ('slot', '<u4'), ('pop', 'S1')]
)  # fmt: skip


class _Used:
    """Stands in the memo for a dict that has been used."""

    __slots__ = ()
    __hash__ = None


def _slots(opcode, slots):
    operations = np.empty(len(slots), _SLOT)
    operations['opcode'] = opcode
    operations['slot'] = slots
    return operations.tobytes()


def _copies(firsts, slots):
    operations = np.empty(len(slots), _COPY)
    operations['get'] = pickle.LONG_BINGET
    operations['first'] = firsts
    operations['put'] = pickle.LONG_BINPUT
    operations['slot'] = slots
    operations['pop'] = pickle.POP
    return operations.tobytes()


class MemoUpkeep:
    """What is done about the memo of one unpickler.

    Args:
        stand_ins (iterable[type]): The classes of what a stream builds, each
            of which has two slots: its own and its state's.

    Attributes:
        unseen (int): How many were built and not yet seen in a slot; who
            builds one adds it.
        shared (dict): One object for each value, for who builds something of
            values that might be in the memo many times.
    """

    def __init__(self, stand_ins):
        self.unseen = 0
        self.shared = {}
        self._num_seen_slots = 0
        self._first_slots = {}  # by value
        self._replacement = b''
        self._answer = self._refuse
        self._kinds = {dict: _DICT, str: _STRING, tuple: _TUPLE}
        self._kinds.update(dict.fromkeys(stand_ins, _STAND_IN))

    def clear(self):
        """Let go of the values; the classes may refer to this for longer."""
        self.shared.clear()
        self._first_slots.clear()

    def next_frame(self):
        """The content of a frame to be executed now; empty if none is due."""
        if self._replacement:
            frame, self._replacement = self._replacement, b''
            self._answer = self._confirm
            return frame
        if self.unseen < _MIN_UNSEEN:
            return b''
        begin = self._num_seen_slots
        self._num_seen_slots += 2 * self.unseen
        self._answer = self._look
        return (
            self._handing_out(range(begin, self._num_seen_slots)) + pickle.POP
        )

    def persistent_load(self, held):
        """Take what a frame of ours hands out; refuse what the file does."""
        answer, self._answer = self._answer, self._refuse
        return answer(held)

    @staticmethod
    def _handing_out(slots):
        gets = _slots(pickle.LONG_BINGET, slots)
        return pickle.MARK + gets + pickle.TUPLE + pickle.BINPERSID

    def _refuse(self, held):
        raise ValueError('the file has a persistent id')

    def _look(self, held):
        """Plan what is put in place of what the last slots hold."""
        begin = self._num_seen_slots - len(held)
        kinds = self._kinds_of(held)
        self.unseen -= int(np.count_nonzero(kinds == _STAND_IN))
        is_value = (kinds == _STRING) | (kinds == _TUPLE)
        slots = np.flatnonzero(is_value) + begin
        firsts = np.fromiter(
            map(
                self._first_slots.setdefault,
                itertools.compress(held, is_value.tolist()),
                slots.tolist(),
            ),
            'u4',
            len(slots),
        )
        is_repeated = firsts != slots
        firsts, slots = firsts[is_repeated], slots[is_repeated]
        self._confirmed = np.unique(firsts)
        self._replacement = (
            self._handing_out(self._confirmed)
            + _slots(pickle.LONG_BINPUT, np.flatnonzero(kinds == _DICT) + begin)
            + pickle.POP
            + _copies(firsts, slots)
        )

    def _confirm(self, held):
        """The first ones must still be where they were, whatever was put."""
        self._kinds_of(held)
        firsts = list(map(self._first_slots.get, held))
        if firsts != self._confirmed.tolist():
            raise ValueError('a slot of the memo is used again')
        return _Used()

    def _kinds_of(self, held):
        """What each object is, after a look into the tuples among them."""
        kind_of, others = self._kinds.get, itertools.repeat(_OTHER)
        kinds = np.frombuffer(
            bytes(map(kind_of, map(type, held), others)), 'u1'
        )
        tuples = itertools.compress(held, (kinds == _TUPLE).tolist())
        items = itertools.chain.from_iterable(tuples)
        if not _PLAIN_TYPES.issuperset(map(type, items)):
            raise ValueError('a tuple holds more than plain values')
        return kinds


class FrameStream:
    """The file object of an unpickler: frames, and others between them.

    Args:
        f (BufferedReader): At the start of a pickle of protocol 4 or later.
        file_bytes (int): Its size.
        next_frame (callable): Gives the content of a frame that comes before
            the next one of the file; empty if that is to come now.
    """

    def __init__(self, f, file_bytes, next_frame):
        self._read = f.read
        self._file_bytes = file_bytes
        self._next_frame = next_frame
        self._parts = [f.read(1), f.read(1)][::-1]  # PROTO, of which protocol

    def read(self, size):
        if not self._parts:
            self._parts = self._next_parts()
        part = self._parts.pop()
        if len(part) != size:
            raise ValueError('an opcode crosses the end of a frame')
        return part

    def readline(self):
        raise ValueError('a line is no part of a frame')

    def _next_parts(self):
        content = self._next_frame()
        if content:
            return [content, len(content).to_bytes(8, 'little'), pickle.FRAME]
        header = self._read(_FRAME_HEADER_BYTES)
        length_bytes = int.from_bytes(header[1:], 'little')
        if header[:1] != pickle.FRAME or length_bytes > self._file_bytes:
            raise ValueError('expected another frame')
        return [self._read(length_bytes), header[1:], header[:1]]
