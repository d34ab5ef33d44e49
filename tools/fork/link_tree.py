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

"""The fork tree: links to an installed Paddle, except where files are ours.

A directory is real only on the way to a planned file; every other entry is
one link to the wheel, however much lies under it. So the tree costs a few
hundred links instead of 1 GB, and the wheel is never written to.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from .console import step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

STAMP_NAME = 'paddle_fork.stamp'
# Trees being built or being removed beside the finished one.
SCRATCH_PREFIX = '.fork-tree-'
# Byte code belongs to one path: the wheel's is useless, and Python would
# write ours into the wheel through a link.
CACHE_NAME = '__pycache__'


def is_current(target: Path, stamp: str) -> bool:
    """Whether `target` was built from what `stamp` describes."""
    try:
        return (target / STAMP_NAME).read_text() == stamp
    except OSError:
        return False


def stamp_of_files(folders: Iterable[Path], files: Iterable[Path]) -> str:
    """Hash of the names and contents of all files, for `build_tree`."""
    digest = hashlib.sha256()
    below = [
        path
        for folder in folders
        for path in sorted(folder.rglob('*'))
        if path.is_file() and CACHE_NAME not in path.parts
    ]
    for path in [*below, *files]:
        content = path.read_bytes()
        digest.update(f'{path}\0{len(content)}\0'.encode())
        digest.update(content)
    return digest.hexdigest()


def build_tree(
    package: Path, texts: Mapping[str, bytes], target: Path, stamp: str
) -> None:
    """Builds `target/paddle` anew and puts it in place when it is whole.

    Args:
        package(Path): the installed package `paddle`; only read.
        texts(Mapping): path under `paddle/` with `/`, to the new content.
        target(Path): the directory that goes into PYTHONPATH; replaced.
        stamp(str): what `is_current` compares with later.

    Raises:
        OSError: the tree could not be written; `target` stands as before.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_scratch(target.parent)
    scratch = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=target.parent))
    try:
        # mkdtemp makes it private; other users may run what is in the tree.
        scratch.chmod(0o755)
        place = linker(package, scratch)
        fill(package, scratch / 'paddle', set(texts), place)
        for name, content in texts.items():
            path = scratch / 'paddle' / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        (scratch / STAMP_NAME).write_text(stamp)
        swap(scratch, target)
    finally:
        remove_scratch(target.parent)


def linker(package: Path, scratch: Path) -> Callable[[Path, Path], None]:
    """Links where the file system can, else copies, and says so once."""
    trial = scratch / 'trial'
    try:
        trial.symlink_to(package, target_is_directory=True)
    except (OSError, NotImplementedError) as error:
        step(f'no symbolic links here ({error}): copying Paddle, about 1 GB')
        return copy
    trial.unlink()
    return link


def link(source: Path, destination: Path) -> None:
    """Puts a link to `source` at `destination`."""
    destination.symlink_to(source, target_is_directory=source.is_dir())


def copy(source: Path, destination: Path) -> None:
    """Puts a copy of `source` at `destination`."""
    if source.is_dir():
        ignore = shutil.ignore_patterns(CACHE_NAME)
        shutil.copytree(source, destination, ignore=ignore)
    else:
        shutil.copy2(source, destination)


def fill(
    source: Path,
    destination: Path,
    planned: set[str],
    place: Callable[[Path, Path], None],
) -> None:
    """Places all of `source` but the planned files, which stay free.

    `planned` holds paths relative to `source`.
    """
    destination.mkdir()
    inside: dict[str, set[str]] = {}
    for path in map(PurePosixPath, planned):
        rest = inside.setdefault(path.parts[0], set())
        if len(path.parts) > 1:
            rest.add(str(PurePosixPath(*path.parts[1:])))
    for entry in sorted(os.listdir(source)):
        if entry == CACHE_NAME:
            continue
        if entry not in inside:
            place(source / entry, destination / entry)
        elif inside[entry]:
            fill(source / entry, destination / entry, inside[entry], place)


def swap(scratch: Path, target: Path) -> None:
    """Renames the finished tree to `target`, the old one out of the way.

    Stopped between the two renames, there is no tree, never half a one.
    """
    if target.exists() or target.is_symlink():
        aside = tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=target.parent)
        target.rename(Path(aside) / 'old')
    scratch.rename(target)


def remove_scratch(folder: Path) -> None:
    """Removes what this or an interrupted run left beside the tree."""
    for path in folder.glob(f'{SCRATCH_PREFIX}*'):
        # rmtree removes links themselves and never follows them.
        shutil.rmtree(path, ignore_errors=True)
