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

"""usage: python sanitizer_case.py FOLDER

AddressSanitizer under an interpreter that was built without it. Prints the
variables, as `env` takes them, with which a Python runs under it, and compiles
what that needs into FOLDER.

The sanitizer's runtime, preloaded, puts memory that is nobody's around every
allocation, keeps freed memory from being used again for a while, and ends the
process when a function of the C library is given either to write to. So reads
from files and copies are seen, while accesses of code that was compiled without
it (CPython, numpy, Paddle) are not. Nor is the byte behind a `bytes` object,
a zero that belongs to it.
"""

import importlib.util
import os
import subprocess
import sys

# What os.preadv calls, and the sanitizer does not know, becomes what it knows.
# It has to find C++ exceptions when it is loaded, though Python has none yet.
SOURCE = '''
#define _GNU_SOURCE
#include <sys/uio.h>

ssize_t preadv64v2(int fd, const struct iovec *views, int count,
                   off64_t offset, int flags) {
  return preadv64(fd, views, count, offset);
}
'''
COMPILE = ('-x', 'c', '-', '-shared', '-fPIC', '-Wl,--no-as-needed')
COMPILE += ('-l:libstdc++.so.6',)

OPTIONS = {
    # An interpreter leaves memory to the system when it ends.
    'detect_leaks': 0,
    # ~IrContext in Paddle's C++ deletes what `new[]` made, at every exit.
    'alloc_dealloc_mismatch': 0,
    # A signal: no test takes it for an error, and faulthandler tells where.
    'abort_on_error': 1,
    # MemoryError for lengths that damaged files claim, as without it.
    'allocator_may_return_null': 1,
}

FREED = 'heap-use-after-free'
BEYOND = 'heap-buffer-overflow'


class SanitizerMissing(Exception):
    """There is no sanitizer that works here; says why."""


def _output(command, **options):
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, **options
        )
    except OSError as error:
        raise SanitizerMissing(f'{command[0]}: {error}') from error
    if done.returncode:
        raise SanitizerMissing(
            f'{" ".join(command)}: expected status 0, but received '
            f'{done.returncode}: {done.stderr.strip()}'
        )
    return done.stdout.strip()


def sanitizer_environment(folder):
    """The environment variables of a Python under AddressSanitizer.

    Args:
        folder (str): Where a small library is compiled to; it has to stay.

    Returns:
        dict[str, str]: Variables to be added to others.

    Raises:
        SanitizerMissing: there is no gcc, or it has no sanitizer, or that does
            not work here.
    """
    runtime = _output(['gcc', '-print-file-name=libasan.so'])
    if not os.path.isabs(runtime):  # the bare name if there is no such file
        raise SanitizerMissing('gcc has no libasan.so')
    library = os.path.abspath(os.path.join(folder, 'preadv.so'))
    _output(['gcc', *COMPILE, '-o', library], input=SOURCE)
    variables = {
        'LD_PRELOAD': f'{runtime}:{library}',
        'ASAN_OPTIONS': ':'.join(f'{k}={v}' for k, v in OPTIONS.items()),
        # Each object, and each Tensor, has an allocation of its own.
        'PYTHONMALLOC': 'malloc',
        'FLAGS_use_system_allocator': '1',
    }
    paddle = importlib.util.find_spec('paddle')
    if paddle is not None:
        # A library loaded through the sanitizer is not looked for where the
        # one that asks for it says.
        folders = [os.path.join(os.path.dirname(paddle.origin), 'libs')]
        folders += filter(None, [os.environ.get('LD_LIBRARY_PATH')])
        variables['LD_LIBRARY_PATH'] = os.pathsep.join(folders)
    command = [sys.executable, __file__, '--probe']
    _output(command, env={**os.environ, **variables})
    return variables


def is_sanitized():
    """Whether this process runs under AddressSanitizer."""
    try:
        with open('/proc/self/maps') as f:
            return 'libasan' in f.read()
    except OSError:  # another system, for which there is none here
        return False


if __name__ == '__main__':
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if sys.argv[1] == '--probe':
        sys.exit(None if is_sanitized() else 'it cannot be preloaded')
    try:
        os.makedirs(sys.argv[1], exist_ok=True)
        found = sanitizer_environment(sys.argv[1])
    except SanitizerMissing as reason:
        sys.exit(f'no AddressSanitizer: {reason}')
    print(*(f'{name}={value}' for name, value in found.items()), sep='\n')
