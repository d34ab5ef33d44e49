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


import _thread
import collections
import ctypes
import errno
import functools
import itertools
import mmap
import numbers
import os
import pickle
import queue
import signal
import stat
import sys
import threading
import time
from types import BuiltinMethodType
from typing import NamedTuple

# The C pickler writes every payload of this size or more outside its frames
# (PEP 3154, _FRAME_SIZE_TARGET); below it a payload is part of a frame.
_MIN_PAYLOAD_BYTES = 64 * 1024

# From this size on a payload is worth a place in the plan, which costs about
# 10 us; smaller ones take no longer to copy and are left to the unpickler.
_MIN_PARALLEL_PAYLOAD_BYTES = 256 * 1024

# Under this many payload bytes, starting threads costs more than it saves.
_MIN_PARALLEL_BYTES = 4 * 1024 * 1024

# One read of a worker. Large enough that its 10 us of Python vanish beside the
# copy (about 2 ms), small enough that the last worker is not waited for.
_PIECE_BYTES = 16 * 1024 * 1024

# A payload is cut no finer than this when it is shared out between workers:
# the size of a huge page, so that two workers seldom fault in the same one.
_MIN_PIECE_BYTES = 2 * 1024 * 1024

# A frame's length and the frame, or a string's, are read one after the other;
# the next read is of one byte, an opcode.
_MAX_LONG_READS = 2

# What is read at once outside the payloads: opcodes between two tensors take
# 100 to 300 bytes, and the next payload's opcode should come with them.
_WINDOW_BYTES = 512

# Neighbouring payloads share one preadv if no more than this lies between
# them; reading it into a scratch buffer is cheaper than another system call.
_MAX_GAP_BYTES = 4096

# The least IOV_MAX that Linux and macOS have ever had (sysconf(3)).
_MAX_VIEWS = 1024

# Opcodes outside frames, and frames, in a row that bring no payload for the
# plan. Picklers leave a handful between large payloads; walking a stream of
# many small pieces is lost time, of which 1 or 2 ms are risked. A thousand
# frames are 64 MiB of small tensors.
_MAX_IDLE_OPCODES = 1000

# Wherever such an object begins, a whole huge page lies inside it (2 MiB on
# x86-64, and on arm64 with 4 KiB pages).
_MIN_HUGE_PAGE_PAYLOAD_BYTES = 4 * 1024 * 1024

# A thread without work begins and ends within some 50 us, on a busy machine
# within some ms; one that has not begun by then may never, and reads nothing.
_MAX_THREAD_DELAY_S = 1.0
_MIN_POLL_S, _MAX_POLL_S = 20e-6, 1e-3

# What a reading thread does.
_STARTING, _RUNNING, _ENDED = range(3)

_FRAME, _BYTEARRAY8, _NEXT_BUFFER = b'\x95\x96\x97'
_PAYLOAD_OPCODES = b'B\x8e\x96'  # BINBYTES, BINBYTES8, BYTEARRAY8


class _StreamUnsuited(Exception):
    """The parallel path does not apply to a stream; says nothing against it."""


class _ReadFault(Exception):
    """Reading the payloads failed: I/O, memory or threads."""


class _Payload(NamedTuple):
    """Where a large `bytes` or `bytearray` object stands in a pickle stream."""

    opcode_offset: int
    offset: int
    length_bytes: int
    is_bytearray: bool

    @property
    def end(self):
        return self.offset + self.length_bytes


class _Part(NamedTuple):
    """Consecutive bytes of one payload that one read brings."""

    payload_index: int
    start: int
    file_offset: int
    length_bytes: int


def _resolve_num_workers(num_workers):
    """The number of reading threads that a `num_workers` argument asks for.

    Args:
        num_workers (int|None): None, 0 and 1 mean a serial load.

    Returns:
        int: 1 for a serial load, else the most threads to read with.

    Raises:
        TypeError: it is neither None nor an integer; bool is not taken for one.
        ValueError: it is negative.
    """
    if num_workers is None:
        return 1
    # A Tensor has __index__ too, and cuts a fraction off.
    if isinstance(num_workers, bool) or not isinstance(
        num_workers, numbers.Integral
    ):
        raise TypeError(
            'The type of `num_workers` is expected to be int or None, '
            f'but received {type(num_workers).__name__}: {num_workers!r}.'
        )
    if num_workers < 0:
        raise ValueError(
            '`num_workers` is expected to be None or at least 0, '
            f'but received {num_workers}.'
        )
    return max(int(num_workers), 1)


# ---- index: where the payloads are


@functools.cache
def _opcode_table():
    """For each opcode byte: (fixed bytes after it, bytes of a length, lines).

    None stands for what the index must not walk over: no opcode, STOP, PROTO
    (a second pickle follows the first), and buffers from outside the stream.
    """
    import pickletools  # costs 5 ms; the serial load does without it

    length_prefix_bytes = {
        pickletools.TAKEN_FROM_ARGUMENT1: 1,
        pickletools.TAKEN_FROM_ARGUMENT4: 4,
        pickletools.TAKEN_FROM_ARGUMENT4U: 4,
        pickletools.TAKEN_FROM_ARGUMENT8U: 8,
    }
    table = [None] * 256
    for opcode in pickletools.opcodes:
        if opcode.name in ('STOP', 'PROTO', 'NEXT_BUFFER', 'READONLY_BUFFER'):
            continue
        argument = opcode.arg
        if argument is None:
            entry = (0, 0, 0)
        elif opcode.name == 'FRAME':
            entry = (0, 8, 0)
        elif argument.n == pickletools.UP_TO_NEWLINE:
            entry = (0, 0, 2 if argument.name.endswith('_pair') else 1)
        elif argument.n in length_prefix_bytes:
            entry = (0, length_prefix_bytes[argument.n], 0)
        else:
            entry = (argument.n, 0, 0)
        table[ord(opcode.code)] = entry
    return table


def _index_payloads(
    read_at,
    file_bytes,
    min_payload_bytes=_MIN_PAYLOAD_BYTES,
    max_idle_opcodes=None,
    gaps=None,
):
    """Find the large payloads of the pickle stream that starts at offset 0.

    Frames are stepped over by their length, opcodes outside frames by the
    size of their argument; nothing is interpreted. Where the walk meets what
    it does not know it ends, and what it found so far is the index. The index
    is a guess about a damaged or hostile stream, which `_PayloadStream` tests.

    Args:
        read_at (callable): (offset, length) -> the bytes there, fewer only at
            the end of the file.
        file_bytes (int): Size of the file.
        min_payload_bytes (int): Smaller payloads are left out.
        max_idle_opcodes (int|None): End after so many opcodes and frames in a
            row that bring no payload for the index. None: never.
        gaps (dict[int, bytes]|None): Gets what was read between two payloads
            anyway, by its offset, where one read was enough for it.

    Returns:
        list[_Payload]: In file order.

    Raises:
        _StreamUnsuited: a length reaches beyond the end of the file.
    """
    table = _opcode_table()
    payloads = []
    window, window_offset = read_at(0, _WINDOW_BYTES), 0
    offset = 2 if window[:1] == b'\x80' else 0
    idle_opcodes = gap_offset = 0
    last = len(window) - 9
    while offset < file_bytes:
        at = offset - window_offset
        if at > last:  # no room for an opcode and the longest length there is
            window, window_offset, at = (
                read_at(offset, _WINDOW_BYTES),
                offset,
                0,
            )
            if not window:
                break
            last = len(window) - 9
        code = window[at]
        if code == _FRAME:  # most of the steps
            end = offset + 9 + int.from_bytes(window[at + 1 : at + 9], 'little')
            if at + 9 <= len(window) and end <= file_bytes:
                offset = end
                idle_opcodes += 1
                if idle_opcodes == max_idle_opcodes:
                    break
                continue
        entry = table[code]
        if entry is None:
            break
        fixed_bytes, prefix_bytes, lines = entry
        end = offset + 1 + fixed_bytes
        if prefix_bytes:
            start = at + 1 + prefix_bytes
            length = int.from_bytes(window[at + 1 : start], 'little')
            end = offset + 1 + prefix_bytes + length
            if start > len(window) or end > file_bytes:
                raise _StreamUnsuited(
                    f'the opcode {code:#04x} at offset {offset} is expected '
                    f'to end within the {file_bytes} bytes of the file, '
                    f'but its argument of {length} bytes reaches to {end}'
                )
            if length >= min_payload_bytes and code in _PAYLOAD_OPCODES:
                is_bytearray = code == _BYTEARRAY8
                payloads.append(
                    _Payload(offset, end - length, length, is_bytearray)
                )
                idle_opcodes = -1
                if gaps is not None and window_offset == gap_offset:
                    gaps[gap_offset] = window[:at]
                gap_offset = end
        elif lines:
            end = _after_lines(read_at, offset + 1, lines)
            if end is None:
                break
        idle_opcodes += 1
        if idle_opcodes == max_idle_opcodes:
            break
        offset = end
    return payloads


def _after_lines(read_at, offset, lines):
    """The offset behind so many lines, or None where they do not end soon."""
    text = read_at(offset, _WINDOW_BYTES)
    at = 0
    for _ in range(lines):
        at = text.find(b'\n', at) + 1
        if not at:
            return None
    return offset + at


# ---- the stream that the unpickler sees


class _PayloadStream:
    """A file for `pickle.Unpickler` in which payloads are out of band.

    It reads as the file does, except that each planned payload, from its
    opcode to its last byte, reads as the one opcode NEXT_BUFFER of PEP 574.

    The unpickler takes this stream's bytes once and in order. A planned
    payload is given out only if a read of exactly one byte stood at its
    opcode and NEXT_BUFFER was executed before anything else was read; no read
    may cross such a place. That read is made either for an opcode, which is
    then the NEXT_BUFFER executed, or for an argument, after which the
    unpickler, having nothing buffered, must read again and is refused. So
    each replaced opcode was executed as an opcode where the plan had it.
    Unplanned payloads are read from the file like everything else.

    An argument that crosses the end of its frame continues behind it where
    the file can peek, as the serial load's can; here, the unpickler drops the
    rest of the frame. It then asks for more than one byte (for a single one
    there is no rest), straight after the frame, which itself came straight
    after its eight bytes of length. No honest stream has three such reads in
    a row, so the third is refused. `readinto` drops nothing, and may be a part
    of such a read.

    Args:
        read_at (callable): (offset, length) -> the bytes there, fewer only at
            the end of the file.
        file_bytes (int): Size of the file.
        payloads (list[_Payload]): The plan, in file order.
        readinto_at (callable|None): (offset, buffer) -> the count of bytes
            read into it. None: unplanned payloads are copied once more.
        gaps (dict[int, bytes]|None): Bytes of the file by their offset; used
            up. None: all is read.
    """

    def __init__(
        self, read_at, file_bytes, payloads, readinto_at=None, gaps=None
    ):
        self._gaps = {} if gaps is None else gaps
        self._read_at = read_at
        self._readinto_at = readinto_at
        self._file_bytes = file_bytes
        self._plan = iter(payloads)
        self._long_reads = 0
        self._advance(0)

    def _advance(self, offset):
        self._offset = self._window_offset = offset
        self._window = self._gaps.pop(offset, b'')
        self._at_opcode = False
        self._planned = next(self._plan, None)
        self._limit = (
            sys.maxsize
            if self._planned is None
            else self._planned.opcode_offset
        )

    def read(self, length):
        if length == 1:
            self._long_reads = 0
        elif self._long_reads < _MAX_LONG_READS:
            self._long_reads += 1
        else:
            raise self._unplanned(f'a read of {length} bytes in a frame')
        offset = self._offset
        if length > self._limit - offset:
            return self._read_planned_opcode(length)
        start = offset - self._window_offset
        data = self._window[start : start + length]
        if len(data) < length:
            data = self._fetch(length)
        self._offset = offset + len(data)
        return data

    def readinto(self, buffer):
        length = len(buffer)
        if length > self._limit - self._offset:
            raise self._unplanned(f'a read into {length} bytes')
        if self._readinto_at is not None and length > _WINDOW_BYTES:
            count = self._readinto_at(self._offset, buffer)
            self._offset += count
            return count
        # No long read of its own, and what follows may still drop a frame.
        long_reads, self._long_reads = self._long_reads, 0
        data = self.read(length)
        self._long_reads = long_reads
        buffer[: len(data)] = data
        return len(data)

    def readline(self):
        if self._long_reads:
            raise self._unplanned('a line in a frame')
        length = _WINDOW_BYTES
        while True:
            longest = min(self._limit, self._file_bytes) - self._offset
            line = self._fetch(min(length, longest))
            end = line.find(b'\n') + 1
            if end:
                self._offset += end
                return line[:end]
            if length >= longest:
                if self._planned is not None:
                    raise self._unplanned('a line')
                self._offset += len(line)
                return line
            length *= 2

    def next_payload(self):
        """The payload whose NEXT_BUFFER the unpickler is executing."""
        if not self._at_opcode:
            raise self._unplanned('an opcode NEXT_BUFFER')
        payload = self._planned
        self._advance(payload.end)
        return payload

    def _fetch(self, length):
        longest = min(self._limit, self._file_bytes) - self._offset
        wanted = min(max(length, _WINDOW_BYTES), longest)
        window = self._read_at(self._offset, wanted) if wanted > 0 else b''
        if length > _WINDOW_BYTES:  # a frame: nothing is read twice
            return window
        self._window, self._window_offset = window, self._offset
        return window[:length]

    def _read_planned_opcode(self, length):
        if length == 1 and not self._at_opcode:
            self._at_opcode = True
            return bytes((_NEXT_BUFFER,))
        raise self._unplanned(f'a read of {length} bytes')

    def _unplanned(self, what):
        return _StreamUnsuited(
            f'the next payload is expected at offset {self._limit}, '
            f'but the unpickler met {what} at offset {self._offset}'
        )


# ---- plan: who reads what


def _plan_pieces(payloads, piece_bytes):
    """Cut payloads into reads of about one size, in file order.

    Args:
        payloads (list[_Payload]): In file order.
        piece_bytes (int): The most payload bytes of one read.

    Returns:
        tuple[list[list[_Part]], list[int]]: The parts of each read, and for
        each payload the index of the last read that brings bytes of it.
    """
    pieces, last_pieces = [], []
    parts, room = [], 0
    for index, payload in enumerate(payloads):
        start = 0
        while start < payload.length_bytes:
            offset = payload.offset + start
            if (
                not room
                or 2 * len(parts) + 2 > _MAX_VIEWS
                or offset - parts[-1].file_offset - parts[-1].length_bytes
                > _MAX_GAP_BYTES
            ):
                parts, room = [], piece_bytes
                pieces.append(parts)
            length = min(room, payload.length_bytes - start)
            parts.append(_Part(index, start, offset, length))
            start += length
            room -= length
        last_pieces.append(len(pieces) - 1)
    return pieces, last_pieces


def _piece_bytes(payloads, num_workers):
    """Share few bytes evenly between the workers, many in fixed pieces."""
    total_bytes = sum(payload.length_bytes for payload in payloads)
    share_bytes = -(-total_bytes // num_workers)
    return max(_MIN_PIECE_BYTES, min(_PIECE_BYTES, share_bytes))


# ---- read: into objects that nobody has seen yet


@functools.cache
def _python_api():
    """CPython's way to make a bytes object first and fill it afterwards.

    `PyBytes_FromStringAndSize(NULL, n)` is documented for exactly that; a
    prototype of our own leaves the functions of `ctypes.pythonapi` as others
    may have set them.
    """
    size, address = ctypes.c_ssize_t, ctypes.c_void_p
    made = ctypes.PYFUNCTYPE(ctypes.py_object, address, size)
    located = ctypes.PYFUNCTYPE(address, ctypes.py_object)
    viewed = ctypes.PYFUNCTYPE(ctypes.py_object, address, size, ctypes.c_int)
    api = ctypes.pythonapi
    return {
        'bytes': (
            made(('PyBytes_FromStringAndSize', api)),
            located(('PyBytes_AsString', api)),
        ),
        'bytearray': (
            made(('PyByteArray_FromStringAndSize', api)),
            located(('PyByteArray_AsString', api)),
        ),
        'view': viewed(('PyMemoryView_FromMemory', api)),
    }


@functools.cache
def _madvise():
    """The C library's madvise(2), or None where huge pages are not advised."""
    if not hasattr(mmap, 'MADV_HUGEPAGE'):
        return None
    try:
        function = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


def _new_target(payload):
    """An empty object for a payload and the address of its bytes.

    The first touch of fresh 4 KiB pages costs more than copying into them, so
    the kernel is asked for huge ones; it may have none. Whole pages around the
    object are advised, not only the huge pages within, so that neighbouring
    mappings stay alike and can be merged.
    """
    kind = 'bytearray' if payload.is_bytearray else 'bytes'
    make, locate = _python_api()[kind]
    value = make(None, payload.length_bytes)
    address = locate(value)
    madvise = _madvise()
    if (
        madvise is not None
        and payload.length_bytes >= _MIN_HUGE_PAGE_PAYLOAD_BYTES
    ):
        first = address & -mmap.PAGESIZE
        madvise(
            first,
            address + payload.length_bytes - first,
            mmap.MADV_HUGEPAGE,
        )
    return value, address


def _read_piece(fd, parts, targets):
    """Read one piece of the plan, however many system calls it takes."""
    view_of = _python_api()['view']
    writable = 0x200  # PyBUF_WRITE
    first = parts[0].file_offset
    views, end = [], first
    scratch = memoryview(bytearray(_MAX_GAP_BYTES))
    for part in parts:
        if part.file_offset > end:
            views.append(scratch[: part.file_offset - end])
        _, address = targets[part.payload_index]
        address += part.start
        views.append(view_of(address, part.length_bytes, writable))
        end = part.file_offset + part.length_bytes
    count = _readv_at(fd, views, first)
    if count < end - first:
        raise EOFError(
            f'expected {end - first} bytes at offset {first}, '
            f'but the file ends after {count}'
        )


class _ParallelPayloads:
    """Payloads in the order of the plan, each given out when it is complete.

    To be used as `with reader, reader:`, its first statement `start()`; then
    reading goes on while the unpickler works. On leaving the context no
    thread reads or runs any more, whatever happened and however often Ctrl-C
    was pressed: a signal handler's exception may meet Python code anywhere, so

    - nothing here waits for a lock that Python code holds. `threading` and
      `concurrent.futures` do, and an exception between taking such a lock and
      entering its block leaves it taken for good;
    - leaving twice covers the places in `__exit__` that no `try` of its own
      can cover: its first instruction, and going back to the loop's start.

    Args:
        fd (int): The open file.
        payloads (list[_Payload]): What to read, in file order.
        num_workers (int): The most threads to read with.
        targets (list[tuple]|None): For each payload an object and the address
            in it to read to. None: new objects.

    Attributes:
        touched (set[int]): After the context: indices of the payloads of which
            bytes may have been read.
    """

    def __init__(self, fd, payloads, num_workers, targets=None):
        pieces, self._last_pieces = _plan_pieces(
            payloads, _piece_bytes(payloads, num_workers)
        )
        try:
            self._targets = targets or [_new_target(p) for p in payloads]
        except MemoryError as error:
            raise _ReadFault(
                'no memory for payloads of '
                f'{sum(payload.length_bytes for payload in payloads)} bytes'
            ) from error
        self._fd, self._pieces = fd, pieces
        self._taken = self._complete = 0
        self._closed, self.touched = False, set()
        self._unread = collections.deque(range(len(pieces)))
        self._outcomes = [None] * len(pieces)  # True, or the error
        self._arrivals = queue.SimpleQueue()  # reentrant, waits in C
        workers = min(num_workers, len(pieces))
        self._states, self._thread_ids = [_STARTING] * workers, [None] * workers
        self._started, self._deadline_s = [], None
        self._process_id = os.getpid()

    def start(self):
        """Start the threads, in C: none starts without being counted here."""
        try:
            self._started.extend(
                map(
                    _thread.start_new_thread,
                    itertools.repeat(self._work),
                    zip(range(len(self._states))),
                )
            )
        except (RuntimeError, MemoryError) as error:
            raise _ReadFault(
                f'no thread to read with: {type(error).__name__}: {error}'
            ) from error

    def _work(self, worker):
        # First of all: who closes looks at the states afterwards.
        self._states[worker] = _RUNNING
        try:
            self._thread_ids[worker] = threading.get_native_id()
            while self._unread and not self._closed:
                piece = self._unread.popleft()
                self._outcomes[piece] = self._read(self._pieces[piece])
                self._arrivals.put(piece)
        except IndexError:  # another worker has the last piece
            pass
        finally:
            self._states[worker] = _ENDED

    def _read(self, parts):
        try:
            self.touched.update({part.payload_index for part in parts})
            _read_piece(self._fd, parts, self._targets)
        except BaseException as error:
            return error
        return True

    def take(self):
        """The next payload's object, once all of it has arrived."""
        index = self._taken
        while self._complete <= self._last_pieces[index]:
            outcome = self._outcomes[self._complete]
            if outcome is None:
                self._await_arrival()
            elif outcome is True:
                self._complete += 1
            else:
                raise _ReadFault(
                    f'{type(outcome).__name__}: {outcome}'
                ) from outcome
        self._taken += 1
        value, _ = self._targets[index]
        self._targets[index] = None
        return value

    def _await_arrival(self):
        try:
            self._arrivals.get(timeout=_MAX_THREAD_DELAY_S)
        except queue.Empty:
            # Without memory a thread may end before its first instruction; in
            # a child forked meanwhile there is none.
            if (
                _RUNNING not in self._states or os.getpid() != self._process_id
            ) and self._outcomes[self._complete] is None:
                self._started.clear()  # what never begins never ends
                raise _ReadFault('no thread runs to read with') from None

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        """Let no piece begin any more, wait for those that have begun.

        Calls nothing of ours: where `start()` could run, at whatever depth of
        recursion, this can.
        """
        interrupt, pause_s = None, _MIN_POLL_S
        if self._deadline_s is None:
            self._deadline_s = time.monotonic() + _MAX_THREAD_DELAY_S
        while True:
            try:
                self._closed = True
                while os.getpid() == self._process_id and (
                    _RUNNING in self._states
                    or time.monotonic() < self._deadline_s
                    and (
                        _STARTING in self._states[: len(self._started)]
                        or any(
                            map(
                                os.path.exists,
                                map(
                                    '/proc/self/task/{}'.format,
                                    self._thread_ids,
                                ),
                            )
                        )
                    )
                ):
                    time.sleep(pause_s)
                    pause_s = min(2 * pause_s, _MAX_POLL_S)
                break
            except BaseException as error:
                interrupt = error
        # Errors have frames, and these hold this: a cycle with the payloads.
        self._outcomes.clear()
        self._targets.clear()
        try:
            if interrupt is not None:
                raise interrupt
        finally:
            interrupt = None  # its frames hold this one


# ---- assemble


def _load_pickle(serial_load, path, f, num_workers):
    """Unpickle an open file, its payloads read in parallel where that pays.

    The serial load is the definition of right. Whatever goes wrong beside it
    ends in it: it then gives the value, or the error.

    Args:
        serial_load (callable): What loads the file serially, called as
            `serial_load(f, encoding='latin1')`.
        path (str|BytesIO): What the caller of `paddle.load` gave. Only a path
            is read in parallel; a file object may be more than its descriptor.
        f (BinaryIO): The open file, at its start.
        num_workers (int): The most threads to read with; 1 is serial.

    Returns:
        object: What the stream holds.
    """
    if num_workers <= 1 or not isinstance(path, str):
        return serial_load(f, encoding='latin1')

    def in_parallel():
        return _load_pickle_in_parallel(serial_load, f, num_workers)

    def serially():  # at the start of the file still: pread(2) moves nothing
        return serial_load(f, encoding='latin1')

    return _in_parallel_or_serially(in_parallel, serially, path, num_workers)


def _in_parallel_or_serially(in_parallel, serially, path, num_workers):
    """What one function gives, or else the other; the log says why.

    Args:
        in_parallel (callable): Raises `_StreamUnsuited` for what is not for
            it, `_ReadFault` or anything else if it fails.
        serially (callable): Gives the value, or the error that is raised.
        path (str): The file, for the log.
        num_workers (int): The threads asked for, for the log.

    Returns:
        object: The value.
    """
    failure = None
    try:
        return in_parallel()
    except _StreamUnsuited as reason:
        _raise_signalled(reason)
        _logger.debug(f'{path} is loaded serially: {reason}.')
    except _ReadFault as fault:
        _raise_signalled(fault)
        _logger.warning(
            f'{path} could not be read with num_workers={num_workers} '
            f'({fault}); it is loaded serially.'
        )
    except Exception as error:
        _raise_signalled(error)
        # Kept as text: the error's frames hold the payloads.
        failure = f'{type(error).__name__}: {error}'
    value = serially()
    if failure is not None:
        _logger.warning(
            f'{path} failed to load with num_workers={num_workers} '
            f'({failure}) and was loaded serially.'
        )
    return value


def _raise_signalled(error):
    """Raise an error, or its cause, if the handler of a signal raised it.

    It is meant for the caller, as that of Ctrl-C is, who will not get it a
    second time; but it may be of any class, and met us anywhere.
    """
    codes = {
        _code_of(signal.getsignal(number)) for number in signal.valid_signals()
    } - {None}
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code in codes:
                raise error
            trace = trace.tb_next
        error = error.__cause__


def _code_of(handler):
    """The code of a signal's handler, None if it has none in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = getattr(handler, '__func__', handler)
    if callable(function) and not hasattr(function, '__code__'):
        function = type(function).__call__
    return getattr(function, '__code__', None)


def _check_platform():
    if sys.implementation.name != 'cpython' or not hasattr(os, 'preadv'):
        raise _StreamUnsuited('this platform has no parallel path')
    if sys.is_finalizing():
        raise _StreamUnsuited('the interpreter starts no thread at its end')


def _load_pickle_in_parallel(serial_load, f, num_workers):
    _check_platform()
    unpickler_class = _unpickler_behind(serial_load)
    fd = f.fileno()
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise _StreamUnsuited('it is not a regular file')
    read_at = functools.partial(_read_at, fd)
    if read_at(0, 2) not in (b'\x80\x04', b'\x80\x05'):
        raise _StreamUnsuited('it is not a pickle of protocol 4 or 5')
    gaps = {}
    payloads = _index_payloads(
        read_at,
        status.st_size,
        _MIN_PARALLEL_PAYLOAD_BYTES,
        _MAX_IDLE_OPCODES,
        gaps,
    )
    total_bytes = sum(payload.length_bytes for payload in payloads)
    if total_bytes < _MIN_PARALLEL_BYTES:
        raise _StreamUnsuited(f'its payloads hold only {total_bytes} bytes')
    readinto_at = functools.partial(_readinto_at, fd)
    stream = _PayloadStream(
        read_at, status.st_size, payloads, readinto_at, gaps
    )
    reader = _ParallelPayloads(fd, payloads, num_workers)

    def buffers():
        while True:
            stream.next_payload()
            yield reader.take()

    with reader, reader:
        reader.start()
        return unpickler_class(
            stream, encoding='latin1', buffers=buffers()
        ).load()


def _unpickler_behind(serial_load):
    """The class that the serial load unpickles with, a restricted one too."""
    # A function of somebody's in that place, to watch what is loaded, does
    # not see what is loaded without it.
    if serial_load is pickle.load and isinstance(
        serial_load, BuiltinMethodType
    ):
        return pickle.Unpickler
    module = sys.modules.get(getattr(serial_load, '__module__', None))
    try:
        return module.RestrictedUnpickler
    except AttributeError:
        raise _StreamUnsuited(
            f'the unpickler of {serial_load!r} is not known'
        ) from None


def _is_regular(path):
    """`os.path.isfile`, which takes any error of a signal's handler for no."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError) as error:
        _raise_signalled(error)
        return False


def _open_regular(path):
    """Open a file to read it by offset; a pipe is refused, not waited for.

    No opener is given, for a signal may come between it and the file object.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, 'expected a regular file', path)
    return open(path, 'rb', buffering=0)


def _read_at(fd, offset, length):
    """Bytes of a file, fewer than asked for only at its end."""
    data = os.pread(fd, length, offset)
    if not data or len(data) == length:
        return data
    whole = bytearray(length)
    count = len(data)
    whole[:count] = data
    with memoryview(whole) as view, view[count:] as rest:
        count += _readinto_at(fd, offset + count, rest)
    return bytes(whole[:count])


def _readinto_at(fd, offset, buffer):
    """How many bytes of a file fill a buffer, fewer only at the file's end."""
    return _readv_at(fd, [memoryview(buffer)], offset)


def _readv_at(fd, views, offset):
    """Fill views, and use the list up, however short the single reads are."""
    total = 0
    while views:
        count = os.preadv(fd, views, offset + total)
        if not count:
            break
        total += count
        while count:
            taken = min(count, len(views[0]))
            count -= taken
            if taken == len(views[0]):
                del views[0]
            else:
                views[0] = views[0][taken:]
    return total
