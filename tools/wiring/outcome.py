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

"""What came of a patch, as values; reports are printed from these alone."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Edit:
    """One edit that the series asks for.

    Args:
        file(str): the module, relative to `paddle/`.
        where(str): the function or class edited; `<module>` for the top level.
        verb(str): the verb used.
        why(str): the reason that the series gives.
        done(bool): True when the tree had the result already.
    """

    file: str
    where: str
    verb: str
    why: str
    done: bool = False

    def __str__(self) -> str:
        state = ' (already there)' if self.done else ''
        return f'{self.file}: {self.where}: {self.verb}{state}: {self.why}'


@dataclass(frozen=True)
class Miss:
    """A place that is not as a verb expects it.

    Args:
        file(str): the module, relative to `paddle/`.
        where(str): the function or class looked at.
        expected(str): what was looked for and how often.
        found(str): what stands there.
        foreign(bool): True when somebody else's work stands in the place of
            ours, so that there is nothing to repair in the series.
        other_version(bool): True when the tree has the patch, but in another
            version or edited since.
    """

    file: str
    where: str
    expected: str
    found: str
    foreign: bool = False
    other_version: bool = False

    def __str__(self) -> str:
        if self.foreign or self.other_version:
            return f'{self.file}: in {self.where}: {self.found}'
        return (
            f'{self.file}: in {self.where}: expected {self.expected}, '
            f'but found {self.found}'
        )


@dataclass(frozen=True)
class Change:
    """A file before and after a patch; `before` is None for a new file."""

    before: bytes | None
    after: bytes


@dataclass(frozen=True)
class Outcome:
    """What came of one patch; see the four kinds below."""

    patch: str


@dataclass(frozen=True)
class Applied(Outcome):
    """The patch fits and changes the tree."""

    edits: tuple[Edit, ...]
    changes: dict[str, Change] = field(repr=False)

    def lines(self) -> list[str]:
        files = ', '.join(self.changes)
        return [f'{self.patch}: applied to {files}']


@dataclass(frozen=True)
class AlreadyApplied(Outcome):
    """The tree has everything that the patch brings."""

    edits: tuple[Edit, ...]

    def lines(self) -> list[str]:
        return [f'{self.patch}: already applied']


@dataclass(frozen=True)
class Skipped(Outcome):
    """The patch is not for this tree; the others may still be."""

    reason: str

    def lines(self) -> list[str]:
        return [f'{self.patch}: skipped: {self.reason}']


@dataclass(frozen=True)
class Failed(Outcome):
    """The patch does not fit; nothing of the series may be written."""

    causes: tuple[Miss | str, ...]

    def lines(self) -> list[str]:
        return [
            f'{self.patch}: failed',
            *(f'  {cause}' for cause in self.causes),
        ]
