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

"""Writing a plan into a source checkout, and taking it back.

Beside `paddle/` a directory `.paddle_fork/` keeps the original bytes of every
file written, and a record of hashes. The record is written before the first
file and lists both states of each, so that `revert` also mends a run that was
killed half-way; it goes first when all is taken back. New contents are staged
there too, so that nothing is ever left elsewhere. A file that is in neither
state was edited by somebody: nothing is touched then.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .versions import sha256

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .outcome import Change

STATE_DIRECTORY = '.paddle_fork'


class WriteError(Exception):
    """The tree could not be written or taken back; it is as it was."""


class _File(NamedTuple):
    """Hashes of a file's two states; `original` is None for a new file."""

    original: str | None
    written: str


class _State:
    """The directory that keeps what `revert` needs.

    Args:
        root(Path): the directory that holds `paddle/`.
    """

    def __init__(self, root: Path) -> None:
        self.directory = root / STATE_DIRECTORY
        self._record = self.directory / 'record.json'
        self._originals = self.directory / 'originals'

    def exists(self) -> bool:
        return self._record.is_file()

    def files(self) -> dict[str, _File]:
        if not self.exists():
            return {}
        try:
            record = json.loads(self._record.read_text(encoding='utf-8'))
            return {n: _File(**f) for n, f in record['files'].items()}
        except (ValueError, TypeError, KeyError) as error:
            raise WriteError(
                f'{self._record}: expected a record of written files, '
                f'but received: {error}'
            ) from error

    def keep(self, data: bytes) -> str:
        """Keep a file's original bytes; -> their hash."""
        name = sha256(data)
        if self.original(name) is not None:
            return name
        self._originals.mkdir(parents=True, exist_ok=True)
        (self._originals / name).write_bytes(data)
        return name

    def original(self, name: str) -> bytes | None:
        """The kept bytes of that hash; None if they are gone or damaged."""
        try:
            data = (self._originals / name).read_bytes()
        except OSError:
            return None
        return data if sha256(data) == name else None

    def save(self, files: Mapping[str, _File]) -> None:
        self.directory.mkdir(exist_ok=True)
        # Git need not see any of this.
        (self.directory / '.gitignore').write_text('*\n', encoding='utf-8')
        record = {'files': {n: f._asdict() for n, f in files.items()}}
        partial = self._record.with_suffix('.partial')
        partial.write_text(json.dumps(record, indent=2), encoding='utf-8')
        os.replace(partial, self._record)

    def remove(self) -> None:
        # What is left without a record is of no account; a record without
        # the originals it names could not be taken back.
        self._record.unlink(missing_ok=True)
        if self.directory.is_dir():
            shutil.rmtree(self.directory)


def write(root: Path, changes: Mapping[str, Change]) -> list[str]:
    """Write files, all or nothing; -> their names.

    Args:
        root(Path): the directory that holds `paddle/`.
        changes(Mapping[str, Change]): by path relative to `paddle/`.

    Raises:
        WriteError: an installed wheel, a file that is not as planned, or
            a disk that refused.
    """
    if not changes:
        return []
    if any(root.glob('paddlepaddle*.dist-info')):
        raise WriteError(
            f'{root}: expected a source checkout, but received the place '
            f'of an installed wheel, which is never edited'
        )
    paddle, state = root / 'paddle', _State(root)
    before = state.files()
    _refuse(
        [
            f'{name}: edited since the plan was made'
            for name, change in changes.items()
            if _read(paddle / name) != change.before
        ]
        + [
            f'{name}: edited since the series was written into it'
            for name, change in changes.items()
            if name in before and not _is_in(before[name], change.before)
        ]
    )
    files = dict(before)
    try:
        for name, change in changes.items():
            now = None if change.before is None else sha256(change.before)
            original = before[name].original if name in before else now
            if now is not None and now == original:
                state.keep(change.before)
            files[name] = _File(original, sha256(change.after))
        state.save(files)
        after = {n: c.after for n, c in changes.items()}
        _replace(paddle, after, state.directory)
    except BaseException as error:
        if before:
            state.save(before)
        else:
            state.remove()
        if isinstance(error, OSError):
            raise WriteError(f'nothing is written: {error}') from error
        raise
    return list(changes)


def revert(root: Path) -> list[str]:
    """Bring back the exact bytes that `write` found; -> the files' names.

    Args:
        root(Path): the directory that holds `paddle/`.

    Raises:
        WriteError: nothing was written here, a file was edited since, an
            original is gone, or the disk refused; nothing is changed.
    """
    root = Path(root)
    paddle, state = root / 'paddle', _State(root)
    if not state.exists():
        raise WriteError(
            f'{root}: expected {STATE_DIRECTORY}/record.json, which the '
            f'series leaves where it is written, but found none'
        )
    problems, old = [], {}
    files = state.files()
    for name, file in files.items():
        now = _read(paddle / name)
        if not _is_in(file, now):
            problems.append(
                f'{name}: edited since the series was written into it'
            )
        elif file.original is None:
            old[name] = None
        elif sha256(now) != file.original:
            old[name] = state.original(file.original)
            if old[name] is None:
                problems.append(f'{name}: the kept original is damaged')
    _refuse(problems)
    try:
        _replace(paddle, old, state.directory)
    except OSError as error:
        raise WriteError(f'nothing is reverted: {error}') from error
    state.remove()
    return list(files)


def half_written(root: Path) -> tuple[int, int] | None:
    """How many files of how many a `write` that was killed has written.

    Args:
        root(Path): the directory that holds `paddle/`.

    Returns:
        tuple[int, int]|None: None when all are in one state, when one was
        edited since, or without a record.

    Raises:
        WriteError: the record of what was written is damaged.
    """
    files = _State(root).files()
    written = 0
    for name, file in files.items():
        now = _read(root / 'paddle' / name)
        if not _is_in(file, now):
            return None
        written += now is not None and sha256(now) == file.written
    return (written, len(files)) if 0 < written < len(files) else None


def gone(root: Path) -> list[str]:
    """New files of the series that were written and are not there now.

    Args:
        root(Path): the directory that holds `paddle/`.

    Raises:
        WriteError: the record of what was written is damaged.
    """
    return [
        name
        for name, file in _State(root).files().items()
        if file.original is None and not (root / 'paddle' / name).exists()
    ]


def _refuse(problems: list[str]) -> None:
    if problems:
        raise WriteError('nothing is changed:\n  ' + '\n  '.join(problems))


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _is_in(file: _File, data: bytes | None) -> bool:
    """Whether content is one of a file's two states."""
    now = None if data is None else sha256(data)
    return now in (file.original, file.written)


def _replace(
    paddle: Path, contents: Mapping[str, bytes | None], directory: Path
) -> None:
    """Give files their new content, None for none, all or nothing."""
    before = {name: _read(paddle / name) for name in contents}
    done: list[str] = []
    # On the file system of the tree, so that a swap is a rename.
    with tempfile.TemporaryDirectory(
        prefix='staged-', dir=directory, ignore_cleanup_errors=True
    ) as scratch:
        staged = {
            name: _stage(paddle / name, data, Path(scratch, str(number)))
            for number, (name, data) in enumerate(contents.items())
        }
        try:
            for name in contents:
                done.append(name)
                _swap(paddle / name, staged[name])
        except BaseException:
            for name in done:
                path, partial = paddle / name, Path(scratch, 'before')
                _swap(path, _stage(path, before[name], partial))
            raise


def _stage(path: Path, data: bytes | None, partial: Path) -> Path | None:
    """A complete file, with the mode of the one it will replace."""
    if data is None:
        return None
    partial.write_bytes(data)
    if path.exists():
        shutil.copymode(path, partial)
    return partial


def _swap(path: Path, staged: Path | None) -> None:
    if staged is None:
        path.unlink(missing_ok=True)
    else:
        os.replace(staged, path)
