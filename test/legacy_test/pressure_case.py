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

"""Other processes for loads under pressure, with limits and deadlines."""

import os
import pickle
import select
import signal
import subprocess
import sys
import time
import traceback

# A hundred times what any of them takes: what is not done by then hangs.
DEADLINE_S = 60


def resident_bytes():
    with open('/proc/self/statm') as f:
        return int(f.read().split()[1]) * os.sysconf('SC_PAGESIZE')


def address_space_bytes():
    with open('/proc/self/statm') as f:
        return int(f.read().split()[0]) * os.sysconf('SC_PAGESIZE')


def available_bytes():
    with open('/proc/meminfo') as f:
        fields = dict(line.split(':') for line in f)
    return int(fields['MemAvailable'].split()[0]) * 1024


class ChildFailed(AssertionError):
    """A child ended by a signal, or not in time, or by an error of its own."""


def run_script(source, *args, **environment):
    """Run a script in an interpreter of its own; -> what it prints.

    Args:
        source (str): Its text.
        args: What it finds in sys.argv[1:], as text.
        environment: Variables beside those of this process.

    Raises:
        ChildFailed: it did not end in time, or with another status than 0.
    """
    command = [sys.executable, '-W', 'ignore', '-X', 'faulthandler', '-c']
    try:
        done = subprocess.run(
            [*command, source, *map(str, args)],
            env={
                **os.environ,
                'PYTHONPATH': os.pathsep.join(filter(None, sys.path)),
                **environment,
            },
            capture_output=True,
            text=True,
            errors='replace',
            timeout=DEADLINE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ChildFailed(
            f'expected an end in {DEADLINE_S} s, printed {error.stdout!r}, '
            f'{error.stderr!r}'
        ) from None
    if done.returncode:
        raise ChildFailed(
            f'expected status 0, but received {done.returncode}:\n'
            f'{done.stdout}\n{done.stderr}'
        )
    return done.stdout


def in_child(function, *args):
    """What a function returns in a forked child.

    Raises:
        ChildFailed: the child did not end in time, by a signal, or the
            function raised.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        _run_child(function, args, writing)
    os.close(writing)
    try:
        data = _read_until_closed(reading)
        if data is None:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(reading)
        _, status = os.waitpid(pid, 0)
    if data is None:
        raise ChildFailed(f'expected an end in {DEADLINE_S} s')
    if os.waitstatus_to_exitcode(status):
        raise ChildFailed(
            f'expected status 0, but received '
            f'{os.waitstatus_to_exitcode(status)}: {data.decode()}'
        )
    return pickle.loads(data)


def _run_child(function, args, writing):
    """Never returns: what the parent would do at its end is not done twice."""
    status = 1
    try:
        try:
            data = pickle.dumps(function(*args))
            status = 0
        except BaseException:
            data = traceback.format_exc().encode()
        while data:
            data = data[os.write(writing, data) :]
    finally:
        os._exit(status)


def _read_until_closed(descriptor):
    """All that comes through a pipe; None if it is not closed in time."""
    chunks, deadline_s = [], time.monotonic() + DEADLINE_S
    while True:
        left_s = max(0, deadline_s - time.monotonic())
        if not select.select([descriptor], [], [], left_s)[0]:
            return None
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            return b''.join(chunks)
        chunks.append(chunk)
