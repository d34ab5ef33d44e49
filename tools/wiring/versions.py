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

"""Which Paddle a tree is, and whether the series was proven against it."""

from __future__ import annotations

import ast
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_VERSION_FILE = 'version/__init__.py'


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def version_of(root: Path) -> str | None:
    """The version that a built tree states; a source checkout states none.

    Args:
        root(Path): the directory `paddle/` of the tree.
    """
    try:
        tree = ast.parse((root / _VERSION_FILE).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    for s in tree.body:
        if (
            isinstance(s, ast.Assign)
            and ast.unparse(s.targets[0]) == 'full_version'
            and isinstance(s.value, ast.Constant)
        ):
            return str(s.value.value)
    return None


@dataclass(frozen=True)
class Versions:
    """The Paddle versions that the series was proven against.

    Args:
        proven(dict[str, dict[str, str]]): by version, the SHA-256 of the raw
            bytes of every file of Paddle's that the series edits.
    """

    proven: dict[str, dict[str, str]]

    @classmethod
    def load(cls, path: Path) -> Versions:
        return cls(json.loads(path.read_text(encoding='utf-8')))

    def save(self, path: Path) -> None:
        text = json.dumps(self.proven, indent=2, sort_keys=True)
        path.write_text(text + '\n', encoding='utf-8')

    def names(self) -> str:
        return ', '.join(sorted(self.proven)) or 'none'

    def record(self, root: Path, files: Iterable[str]) -> str:
        """Take a tree's files as proven; -> its version.

        Raises:
            ValueError: the tree does not state its version.
        """
        version = version_of(root)
        if version is None:
            raise ValueError(
                f'{root}: expected a version in {_VERSION_FILE}, '
                f'but received none'
            )
        self.proven[version] = {
            name: sha256((root / name).read_bytes()) for name in sorted(files)
        }
        return version

    def judge(self, root: Path, files: Iterable[str]) -> tuple[bool, str]:
        """Whether files are as a proven Paddle ships them, and in words.

        Args:
            root(Path): the directory `paddle/` of the tree.
            files(Iterable[str]): the files to look at.
        """
        hashes = {
            name: sha256((root / name).read_bytes())
            for name in sorted(files)
            if (root / name).is_file()
        }
        stated = version_of(root)
        # The stated version first: files are often the same in several.
        order = sorted(self.proven, key=lambda v: (v != stated, v))
        for version in order:
            known = self.proven[version]
            if all(known.get(name) == h for name, h in hashes.items()):
                return True, f'as Paddle {version}, proven'
        tested = f'(proven: {self.names()})'
        if stated is None:
            return False, f'a version never tested {tested}'
        if stated not in self.proven:
            return False, f'Paddle {stated}, never tested {tested}'
        known = self.proven[stated]
        changed = ', '.join(n for n, h in hashes.items() if known.get(n) != h)
        return False, f'Paddle {stated}, but not as proven: {changed} differ'
