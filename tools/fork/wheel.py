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

"""The patched wheel: a base wheel of Paddle's with the series applied.

Flow: fetch or take the base, unpack it, plan the series on it, put the
changed files in place, give it a local version, pack it. The package `wheel`
reads and writes the archive, so hashes, RECORD and METADATA are its business.

This module is also the build backend (PEP 517) that pyproject.toml names, for
`pip install .`; setup.py calls it for `python setup.py bdist_wheel`.

What does not belong here: any idea of what is changed, which is `wiring`'s.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import series
import wiring

from .console import EXIT_OK, EXIT_USAGE, ForkError, step
from .destination import check_destination
from .project import Project

BASE_VARIABLE = 'PADDLE_BASE_WHEEL'
# In the local version, so that `pip list` tells a patched Paddle from stock.
LABEL = 'fastload'
NOTE_NAME = 'paddle_fork.json'
# The first with `wheel pack --local-version`; pyproject.toml asks for it too.
OLDEST_WHEEL = (0, 48)


class WheelName(NamedTuple):
    """The parts of a wheel's file name (PEP 427), tags as they are written."""

    distribution: str
    version: str
    build: str
    python: str
    abi: str
    platform: str

    @classmethod
    def parse(cls, path: Path) -> WheelName:
        """The parts of `path`'s name.

        Raises:
            ForkError: it is not the name of a wheel.
        """
        parts = path.name.removesuffix('.whl').split('-')
        if path.suffix != '.whl' or len(parts) not in (5, 6):
            raise ForkError(
                f'{path}: expected a wheel, NAME-VERSION-PYTHON-ABI-'
                f'PLATFORM.whl, but received {path.name}',
                EXIT_USAGE,
            )
        if len(parts) == 5:
            parts.insert(2, '')
        return cls(*parts)

    @property
    def tags(self) -> list[str]:
        """Every tag that the name stands for."""
        sets = (self.python, self.abi, self.platform)
        product = itertools.product(*(tags.split('.') for tags in sets))
        return ['-'.join(tag) for tag in product]


def make_wheel(project: Project, destination: Path) -> Path:
    """Makes the patched wheel of the base that the environment names.

    Args:
        project(Project): whose series.
        destination(Path): the directory that the wheel goes into; made.

    Returns:
        Path: the wheel.

    Raises:
        ForkError: no base, a base that the series does not fit, or a step
            that failed; `destination` has no new wheel.
    """
    check_wheel_package()
    check_destination(destination)
    with tempfile.TemporaryDirectory(prefix='paddle-wheel-') as scratch:
        base = base_wheel(project, Path(scratch))
        return patch_wheel(project, base, destination, Path(scratch))


def check_wheel_package() -> None:
    """Refuses to start without the package that reads and writes wheels."""
    try:
        found = importlib.metadata.version('wheel')
    except importlib.metadata.PackageNotFoundError:
        found = 'none'
    numbers = tuple(map(int, re.findall(r'\d+', found)[:2]))
    if numbers < OLDEST_WHEEL:
        oldest = '.'.join(map(str, OLDEST_WHEEL))
        raise ForkError(
            f'expected the package wheel {oldest} or newer, but found {found}: '
            f'{sys.executable} -m pip install --upgrade wheel'
        )


def base_wheel(project: Project, scratch: Path) -> Path:
    """The wheel in `PADDLE_BASE_WHEEL`, else the pinned one, from pip."""
    named = os.environ.get(BASE_VARIABLE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise ForkError(
                f'{BASE_VARIABLE}={named}: expected a file, but there is no '
                f'{path.absolute()}',
                EXIT_USAGE,
            )
        check_archive(path)
        return path
    return download_wheel(pinned_paddle(project), scratch / 'base')


def check_archive(path: Path) -> None:
    """Refuses what is no wheel by its content.

    Raises:
        ForkError: a damaged archive, none at all, or one of something else.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile as error:
        raise ForkError(
            f'{path}: expected a wheel, but received: {error}', EXIT_USAGE
        ) from error
    if not any(name.endswith('.dist-info/WHEEL') for name in names):
        raise ForkError(
            f'{path}: expected a wheel, but it has no .dist-info/WHEEL',
            EXIT_USAGE,
        )


def pinned_paddle(project: Project) -> str:
    """The requirement that pins the base, as the set-up installs it."""
    path = project.root / 'tools' / 'requirements.txt'
    found = re.search(r'^paddlepaddle==\S+', path.read_text(), re.MULTILINE)
    if found is None:
        raise ForkError(
            f'{path}: expected a line paddlepaddle==VERSION, but found none'
        )
    return found[0]


def download_wheel(requirement: str, folder: Path) -> Path:
    """Has pip fetch one wheel, or take it from pip's cache.

    Raises:
        ForkError: pip found none for this Python and platform.
    """
    step(f'fetching the wheel of {requirement}')
    command = [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps']
    command += ['--only-binary=:all:', '--disable-pip-version-check']
    command += ['--dest', str(folder), requirement]
    done = subprocess.run(command, stdout=sys.stderr)
    wheels = sorted(folder.glob('*.whl'))
    if done.returncode != 0 or len(wheels) != 1:
        raise ForkError(f'pip could not fetch {requirement} (see above)')
    return wheels[0]


def patch_wheel(
    project: Project, base: Path, destination: Path, scratch: Path
) -> Path:
    """Makes the patched wheel of `base`; see `make_wheel`."""
    name = WheelName.parse(base)
    step(f'unpacking {base.name}')
    run_wheel('unpack', '--dest', scratch / 'unpacked', base)
    [root] = (scratch / 'unpacked').iterdir()
    plan = wiring.plan(root, project.overlay)
    report = plan.report().replace(str(root), base.name)
    if not plan.ok:
        raise ForkError(report)
    if not plan.texts:
        raise ForkError(
            f'expected a Paddle without the series, but there is nothing to '
            f'apply\n{report}'
        )
    print(report, file=sys.stderr)
    for file, content in plan.texts.items():
        (root / 'paddle' / file).write_bytes(content)
    local = describe(root, name, note(plan, base))
    step('packing (half a minute for a wheel of 200 MB)')
    packed = scratch / 'packed'
    packed.mkdir()
    arguments = ['--local-version', local, '--build-number', name.build]
    run_wheel('pack', *arguments, '--dest-dir', packed, root)
    [wheel] = packed.glob('*.whl')
    destination.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(wheel, destination / wheel.name))


def note(plan: wiring.Plan, base: Path) -> dict[str, object]:
    """What a patched Paddle says of itself, beside its metadata."""
    with base.open('rb') as file:
        digest = hashlib.sha256()
        while block := file.read(1024 * 1024):
            digest.update(block)
    return {
        'series_version': series.VERSION,
        'base': {'wheel': base.name, 'sha256': digest.hexdigest()},
        'judged': plan.known,
        'patches': {
            outcome.patch: type(outcome).__name__.lower()
            for outcome in plan.outcomes
        },
    }


def describe(root: Path, name: WheelName, content: dict[str, object]) -> str:
    """Writes note and tags and renames the data; -> the local version."""
    version, _, local = name.version.partition('+')
    local = '.'.join(filter(None, (local, LABEL, series.VERSION)))
    [info] = root.glob('*.dist-info')
    (info / NOTE_NAME).write_text(json.dumps(content, indent=2) + '\n')
    # The file name is what installers went by; builds of Paddle are renamed
    # to a wider platform afterwards, without a word of it inside.
    lines = (info / 'WHEEL').read_text().splitlines()
    lines = [x for x in lines if x and not x.startswith('Tag:')]
    lines += [f'Tag: {tag}' for tag in name.tags]
    (info / 'WHEEL').write_text('\n'.join(lines) + '\n')
    # Its name has to follow the version too, which `wheel pack` leaves.
    data = info.with_suffix('.data')
    if data.is_dir():
        data.rename(root / f'{name.distribution}-{version}+{local}.data')
    return local


def run_wheel(*arguments: str | Path) -> None:
    """Runs one command of the package `wheel`, its words on stderr."""
    command = [sys.executable, '-m', 'wheel', *map(str, arguments)]
    done = subprocess.run(
        command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True
    )
    if done.returncode != 0:
        # Of a traceback, the last line names the cause.
        cause = done.stderr.strip().rpartition('\n')[2]
        raise ForkError(
            f'`wheel {arguments[0]}` failed for {arguments[-1]}: {cause}'
        )


# ---- the hooks of PEP 517


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, object] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """The hook that installers call; -> the file name of the wheel."""
    try:
        return make_wheel(Project(), Path(wheel_directory)).name
    except ForkError as error:
        sys.exit(f'error: {error}')


def build_sdist(
    sdist_directory: str, config_settings: dict[str, object] | None = None
) -> str:
    """Refuses: what would be packed is this checkout, nothing more."""
    sys.exit('error: there is no source distribution; build the wheel alone')


def main(args: list[str]) -> int:
    """What setup.py does.

    Args:
        args(list[str]): the arguments of the process.

    Returns:
        int: the exit code.
    """
    parser = argparse.ArgumentParser(
        prog='setup.py',
        description='Makes a Paddle wheel with the series applied.',
        epilog=f'{BASE_VARIABLE}=FILE names the wheel to patch; without it '
        'pip fetches the one that tools/requirements.txt pins. About 1.1 GB '
        'in TMPDIR while it runs.',
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar='COMMAND', required=True)
    command = commands.add_parser('bdist_wheel', help='the only command')
    command.add_argument(
        '-d',
        '--dist-dir',
        type=Path,
        default=Path('dist'),
        metavar='DIR',
        help='where the wheel goes (default: %(default)s)',
    )
    options = parser.parse_args(args)
    try:
        print(make_wheel(Project(), options.dist_dir))
    except ForkError as error:
        print(f'setup.py: {error}', file=sys.stderr)
        return error.exit_code
    return EXIT_OK
