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

"""The series as patches for `git am`, generated from a Paddle checkout.

One commit for each patch of the series: what it does to Paddle's files, its
own modules, its tests. The commits are made beside the checkout, in an index
and an object store of their own, so that the checkout is only read; git
itself then writes the patches, with the ids that `git am --3way` needs.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import series
import wiring

from .checkout import tree_root
from .console import EXIT_OK, EXIT_USAGE, ForkError, step
from .destination import check_destination

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wiring.tree import Patch

    from .project import Project

_NEW_FILE_MODE = '100644'

# How a folder of Paddle's tests picks up its modules by their names.
_TEST_GLOB = re.compile(r'file\(\s*GLOB\b[^)]*test_\*\.py')
_TEST_RULE = 'py_test_modules('

# What a user's or a repository's settings would change in a patch, and what no
# option of `git format-patch` sets in all versions of git.
_SETTINGS = {
    'diff.context': '3',
    'diff.suppressBlankEmpty': 'false',
    'format.from': 'false',
    'format.signOff': 'false',
    'format.suffix': '.patch',
    'format.useAutoBase': 'false',
}


def export(project: Project, checkout: Path, destination: Path) -> int:
    """Writes one patch file for each patch of the series that applies.

    Args:
        project(Project): whose series and tests.
        checkout(Path): a git repository of Paddle; only read.
        destination(Path): the directory of the patch files; made.

    Returns:
        int: EXIT_OK.

    Raises:
        ForkError: no git repository, a tree that the series does not fit,
            files with changes that are not committed, or a destination that
            is no directory, is read-only or holds patches.
    """
    root = tree_root(checkout)
    check_destination(destination)
    if any(destination.glob('*.patch')):
        raise ForkError(
            f'{destination}: expected no *.patch in it, which `git am` would '
            'take for part of the series, but there are some',
            EXIT_USAGE,
        )
    plan = wiring.plan(root, project.overlay)
    print(plan.report(), file=sys.stderr)
    if not plan.texts:
        raise ForkError(f'{checkout}: there is nothing to export (see above)')
    with tempfile.TemporaryDirectory(prefix='paddle-export-') as scratch:
        repository = Repository(root, Path(scratch))
        check_committed(repository, plan.changes)
        for outcome in plan.outcomes:
            if isinstance(outcome, wiring.Applied):
                commit_patch(project, repository, outcome)
        patches = repository.format_patches(Path(scratch) / 'patches')
        destination.mkdir(parents=True, exist_ok=True)
        for path in patches:
            print(shutil.move(path, destination / path.name))
    return EXIT_OK


def commit_patch(
    project: Project, repository: Repository, outcome: wiring.Applied
) -> None:
    """Commits one patch of the series with its tests."""
    [patch] = [p for p in series.PATCHES if p.__name__ == outcome.patch]
    files = {
        f'python/paddle/{name}': change.after
        for name, change in outcome.changes.items()
    }
    tests = tests_of(patch, project.root / 'test')
    taken = [name for name in tests if repository.read(f'test/{name}')]
    if taken:
        raise ForkError(
            f'{repository.top}: expected no test/{taken[0]}, which is a test '
            'of the series, but there is one'
        )
    files.update({f'test/{n}': path.read_bytes() for n, path in tests.items()})
    files.update(cmake_changes(repository, tests))
    repository.commit(files, message_of(patch))


def message_of(patch: Patch) -> str:
    """The commit message: the docstring of the patch."""
    return inspect.cleandoc(patch.__doc__ or '') + '\n'


def tests_of(patch: Patch, folder: Path) -> dict[str, Path]:
    """A patch's tests and what they import, by path relative to `test/`.

    Raises:
        ForkError: a pattern in the patch's record that matches nothing.
    """
    found = {}
    for pattern in patch.record.tests:
        paths = sorted(folder.glob(pattern))
        if not paths:
            raise ForkError(
                f'{patch.__name__}: expected tests {folder / pattern}, but '
                'there are none'
            )
        found.update({p.relative_to(folder).as_posix(): p for p in paths})
    return found


def cmake_changes(
    repository: Repository, tests: Iterable[str]
) -> dict[str, bytes]:
    """What the CMakeLists.txt of the tests' folders have to gain.

    Nothing where a folder registers test_*.py by a glob, as Paddle's do.

    Raises:
        ForkError: a folder whose tests Paddle's CMake does not know.
    """
    changes = {}
    modules = [Path(name) for name in tests if '/test_' in name]
    for folder in sorted({path.parent for path in modules}):
        name = f'test/{folder.as_posix()}/CMakeLists.txt'
        data = repository.read(name)
        if data is None:
            raise ForkError(
                f'{repository.top}: expected {name}, without which the tests '
                'there would not run, but there is none'
            )
        text = data.decode()
        if _TEST_GLOB.search(text) and _TEST_RULE in text:
            step(f'{name} globs test_*.py: needs no lines')
            continue
        lines = [
            f'{_TEST_RULE}{path.stem} MODULES {path.stem})'
            for path in modules
            if path.parent == folder
        ]
        step(f'{name} globs no test_*.py: gains {len(lines)} lines')
        changes[name] = '\n'.join([text.rstrip('\n'), *lines, '']).encode()
    return changes


def check_committed(
    repository: Repository, changes: Mapping[str, wiring.Change]
) -> None:
    """Refuses files whose content is not that of the last commit."""
    differ = [
        name
        for name, change in changes.items()
        if repository.read(f'python/paddle/{name}') != change.before
    ]
    if differ:
        raise ForkError(
            f'{repository.top}: expected the last commit to hold what the '
            f'files hold, but these differ: {", ".join(differ)}'
        )


class Repository:
    """A git repository, to be committed to without a change to it.

    Args:
        root(Path): the directory `python/` of the checkout.
        scratch(Path): an empty directory for index and objects.

    Attributes:
        top(Path): the top of the checkout.

    Raises:
        ForkError: not the top-level `python/` of a git repository with a
            commit, or git does not know who commits.
    """

    def __init__(self, root: Path, scratch: Path) -> None:
        self.top = root.resolve().parent
        self._environ = dict(os.environ)
        self._refusal = ''
        shown = self._try('rev-parse', '--show-prefix')
        if root.name != 'python' or shown is None or shown.strip():
            raise ForkError(
                f'{self.top}: expected a git repository with python/paddle in '
                f'it, but this is none{self._refusal}',
                EXIT_USAGE,
            )
        head = self._try('rev-parse', '--verify', '--quiet', 'HEAD^{commit}')
        if head is None:
            raise ForkError(
                f'{self.top}: expected a commit, but found none{self._refusal}'
            )
        if self._try('var', 'GIT_COMMITTER_IDENT') is None:
            raise ForkError(
                'git does not know who you are, which each patch states: '
                'git config --global user.name NAME, and user.email'
            )
        self._base = self._tip = head.decode().strip()
        objects = self._run('rev-parse', '--git-path', 'objects').decode()
        (scratch / 'objects').mkdir()
        self._environ |= {
            'GIT_INDEX_FILE': str(scratch / 'index'),
            'GIT_OBJECT_DIRECTORY': str(scratch / 'objects'),
            'GIT_ALTERNATE_OBJECT_DIRECTORIES': os.pathsep.join(
                filter(
                    None,
                    (
                        str(self.top / objects.strip()),
                        os.environ.get('GIT_ALTERNATE_OBJECT_DIRECTORIES'),
                    ),
                )
            ),
        }
        self._run('read-tree', head.decode().strip())

    def read(self, name: str) -> bytes | None:
        """A file's content as of the newest commit; None if it has none."""
        return self._try('cat-file', 'blob', f'{self._tip}:{name}')

    def commit(self, files: Mapping[str, bytes], message: str) -> None:
        """Commits new contents of files."""
        for name, data in files.items():
            blob = self._run('hash-object', '-w', '--stdin', data=data)
            listed = self._run('ls-files', '--stage', '--', name).decode()
            mode = listed.partition(' ')[0] or _NEW_FILE_MODE
            entry = f'{mode},{blob.decode().strip()},{name}'
            self._run('update-index', '--add', '--cacheinfo', entry)
        tree = self._run('write-tree').decode().strip()
        made = self._run(
            *('commit-tree', '-p', self._tip, tree), data=message.encode()
        )
        self._tip = made.decode().strip()

    def format_patches(self, folder: Path) -> list[Path]:
        """Writes all commits as patch files; options of the user's aside."""
        self._run(
            *('format-patch', '--output-directory', str(folder)),
            *('--no-cover-letter', '--no-attach', '--no-thread'),
            *('--no-signature', '--no-renames', '--numbered', '--full-index'),
            '--no-add-header',
            *('--src-prefix=a/', '--dst-prefix=b/', '--subject-prefix=PATCH'),
            *('--no-ext-diff', '--no-color', f'{self._base}..{self._tip}'),
        )
        patches = sorted(folder.glob('*.patch'))
        if not patches:
            raise ForkError(
                f'{self.top}: expected git format-patch to write *.patch, but '
                'it wrote none'
            )
        return patches

    def _run(self, *arguments: str, data: bytes = b'') -> bytes:
        done = self._start(arguments, data)
        if done.returncode != 0:
            raise ForkError(
                f'git {arguments[0]} failed in {self.top}: '
                f'{done.stderr.decode(errors="replace").strip()}'
            )
        return done.stdout

    def _try(self, *arguments: str) -> bytes | None:
        done = self._start(arguments)
        if done.returncode == 0:
            return done.stdout
        said = done.stderr.decode(errors='replace').strip()
        self._refusal = f'; git says: {said}' if said else ''
        return None

    def _start(
        self, arguments: Iterable[str], data: bytes = b''
    ) -> subprocess.CompletedProcess[bytes]:
        settings = []
        for name, value in _SETTINGS.items():
            settings += ['-c', f'{name}={value}']
        try:
            return subprocess.run(
                ['git', '-C', str(self.top), *settings, *arguments],
                input=data,
                capture_output=True,
                env=self._environ,
            )
        except FileNotFoundError as error:
            raise ForkError('expected git in PATH, but found none') from error
