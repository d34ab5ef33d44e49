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

"""One set-up at a time: two terminals may start the tool together."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from .console import step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: no lock, as before there was one
    fcntl = None


@contextmanager
def setup_lock(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path` (made if missing); waits for it.

    The system drops the lock when the process ends, however it ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open('w') as lock_file:
        if fcntl is not None:
            try:
                fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                step('waiting for another set-up of this tree to finish')
                fcntl.flock(lock_file, fcntl.LOCK_EX)
            except OSError:
                pass  # a file system without locks (some network mounts)
        yield
