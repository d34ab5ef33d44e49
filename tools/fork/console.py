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

"""Exit codes, the error that ends a command, and progress lines."""

from __future__ import annotations

import sys

# The three outcomes that `--help` promises.
EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
# What shells report for a command that SIGINT ended.
EXIT_INTERRUPTED = 130


class ForkError(Exception):
    """Ends the command with a message for the user.

    Args:
        message(str): what was expected, what was found, what to do.
        exit_code(int, optional): EXIT_FAILED or EXIT_USAGE. Default:
            EXIT_FAILED.
    """

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def counted(number: int, noun: str) -> str:
    """A number with its noun, which takes a plural s."""
    return f'{number} {noun}' if number == 1 else f'{number} {noun}s'


def step(text: str) -> None:
    """Tells on stderr what is being done, so that stdout stays data."""
    print(f'-- {text}', file=sys.stderr, flush=True)
