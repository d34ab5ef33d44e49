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

"""Where a command writes to, looked at before it starts its work."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .console import EXIT_USAGE, ForkError

if TYPE_CHECKING:
    from pathlib import Path


def check_destination(destination: Path) -> None:
    """Refuses a directory that could not be made or written to.

    Args:
        destination(Path): a directory, or what is to become one.

    Raises:
        ForkError: a file stands in its place or above it, or what is there
            may not be written to.
    """
    there = destination.absolute()
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        raise ForkError(
            f'{destination}: expected a directory or none, but {there} is '
            'something else',
            EXIT_USAGE,
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise ForkError(
            f'{destination}: expected to write there, but {there} is read-only',
            EXIT_USAGE,
        )
