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

"""The virtual environment `.venv`: made once, then recognised by a stamp.

The stamp is a hash of the requirement files and the interpreter, written when
everything is installed. While packages are being installed a marker stands in
its place, so that an interrupted set-up is made anew and never taken for a
finished one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from .console import ForkError, step

STAMP_NAME = 'paddle_fork.stamp'
UNFINISHED_NAME = 'paddle_fork.unfinished'
# cmake_minimum_required in CMakeLists.txt.
OLDEST_CMAKE = (3, 18)
# The first pip with `--python`, for hosts that have pip but no ensurepip.
OLDEST_HOST_PIP = (22, 3)


def venv_python(venv: Path) -> Path:
    """The interpreter inside a virtual environment."""
    if os.name == 'nt':
        return venv / 'Scripts' / 'python.exe'
    return venv / 'bin' / 'python'


def clean_environ(**changes: str) -> dict[str, str]:
    """The environment without the caller's own Python paths.

    pip would take packages found on PYTHONPATH for installed ones, and a
    Paddle there would hide the one under test.
    """
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in ('PYTHONPATH', 'PYTHONHOME')
    }
    return {**environ, **changes}


def requirement_files(tools: Path, venv: Path) -> list[Path]:
    """The files to install from: CMake's own only where it is lacking."""
    files = [tools / 'requirements.txt']
    outside = [
        folder
        for folder in os.get_exec_path()
        if Path(folder).resolve() != venv_python(venv).parent.resolve()
    ]
    if not has_cmake_and_ninja(os.pathsep.join(outside)):
        files.append(tools / 'requirements-cmake.txt')
    return files


def has_cmake_and_ninja(search_path: str) -> bool:
    """Whether `search_path` has a Ninja and a CMake that is new enough."""
    cmake = shutil.which('cmake', path=search_path)
    if cmake is None or shutil.which('ninja', path=search_path) is None:
        return False
    try:
        told = subprocess.run(
            [cmake, '--version'], capture_output=True, text=True
        ).stdout
    except OSError:
        return False
    found = re.search(r'version (\d+)\.(\d+)', told)
    return found is not None and tuple(map(int, found.groups())) >= OLDEST_CMAKE


def stamp_of(files: list[Path]) -> str:
    """Hash of the requirement files and of what wheels depend on."""
    digest = hashlib.sha256()
    for part in (
        sys.implementation.cache_tag,
        sysconfig.get_platform(),
        *(path.name for path in files),
    ):
        digest.update(f'{part}\n'.encode())
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def ensure_environment(root: Path) -> Path:
    """Makes or tops up `root/.venv`; does nothing when its stamp fits.

    Args:
        root(Path): the project's root.

    Returns:
        Path: the interpreter of the environment.

    Raises:
        ForkError: a `.venv` that cannot be used, or a step that failed.
    """
    venv = root / '.venv'
    files = requirement_files(root / 'tools', venv)
    python, stamp = venv_python(venv), venv / STAMP_NAME
    wanted = stamp_of(files)
    unfinished = venv / UNFINISHED_NAME
    if unfinished.exists():
        step(f'an earlier set-up of {venv} did not finish: making it anew')
        shutil.rmtree(venv)
    elif stamp.exists() and stamp.read_text() == wanted and python.exists():
        return python
    elif venv.exists() or venv.is_symlink():
        check_usable(venv)
    if not venv.exists():
        create_venv(venv)
    unfinished.touch()
    install(python, files)
    stamp.write_text(wanted)
    unfinished.unlink()
    return python


def check_usable(venv: Path) -> None:
    """Refuses a `.venv` that is broken or of another Python version."""
    remedy = f'Remove it ({venv}) and run the command again.'
    if not (venv / 'pyvenv.cfg').is_file():
        raise ForkError(
            f'{venv}: expected a virtual environment, but there is no '
            f'pyvenv.cfg in it. {remedy}'
        )
    probe = 'import sys; print("%d.%d" % sys.version_info[:2])'
    try:
        told = subprocess.run(
            [venv_python(venv), '-c', probe],
            capture_output=True,
            text=True,
            env=clean_environ(),
        )
    except OSError as error:
        raise ForkError(
            f'{venv}: its interpreter does not start ({error}). {remedy}'
        ) from error
    if told.returncode != 0:
        raise ForkError(
            f'{venv}: its interpreter does not start '
            f'({told.stderr.strip()}). {remedy}'
        )
    ours = '{}.{}'.format(*sys.version_info[:2])
    if told.stdout.strip() != ours:
        raise ForkError(
            f'{venv}: expected Python {ours}, which runs this command, but '
            f'it was made with {told.stdout.strip()}. {remedy} Or use that '
            'Python.'
        )


def create_venv(venv: Path) -> None:
    """Makes the environment, with pip where the host can bring it."""
    if importlib.util.find_spec('venv') is None:
        raise ForkError(
            'this Python has no module `venv`: install it (on Debian and '
            'Ubuntu the package python3-venv) and run the command again.'
        )
    step(f'making {venv} with Python {sys.version.split()[0]}')
    venv.mkdir()
    (venv / UNFINISHED_NAME).touch()
    # Run from inside `.venv`, the base interpreter has to make the new one.
    base = getattr(sys, '_base_executable', None) or sys.executable
    command = [base, '-m', 'venv', venv]
    if importlib.util.find_spec('ensurepip') is None:
        command.append('--without-pip')
    run_step(command, f'could not make {venv}')


def install(python: Path, files: list[Path]) -> None:
    """Installs the pinned packages; pip shows its own progress."""
    step(f'installing {", ".join(path.name for path in files)}')
    command = [*pip_of(python), 'install', '--disable-pip-version-check']
    for path in files:
        command += ['-r', path]
    run_step(
        command,
        'pip could not install the packages (see above). Paddle 3.3.1 has '
        'wheels for Python 3.10 to 3.13.',
    )


def pip_of(python: Path) -> list[str | Path]:
    """The pip inside the environment, else the host's pip pointed at it."""
    has_pip = subprocess.run(
        [python, '-c', 'import pip'], capture_output=True, env=clean_environ()
    )
    if has_pip.returncode == 0:
        return [python, '-m', 'pip']
    told = subprocess.run(
        [sys.executable, '-m', 'pip', '--version'],
        capture_output=True,
        text=True,
        env=clean_environ(),
    )
    found = re.match(r'pip (\d+)\.(\d+)', told.stdout)
    if found is None or tuple(map(int, found.groups())) < OLDEST_HOST_PIP:
        oldest = '.'.join(map(str, OLDEST_HOST_PIP))
        raise ForkError(
            f'this Python has no `ensurepip`, so expected pip {oldest} or '
            f'newer beside it, but found {found[0] if found else "none"}: '
            'install or upgrade pip (or, on Debian and Ubuntu, the package '
            'python3-venv) and run the command again.'
        )
    return [sys.executable, '-m', 'pip', '--python', python]


def run_step(command: list[str | Path], failure: str) -> None:
    """Runs a command with its output on stderr; raises when it fails."""
    done = subprocess.run(command, stdout=sys.stderr, env=clean_environ())
    if done.returncode != 0:
        raise ForkError(failure)


def site_packages(python: Path) -> Path:
    """The folder that holds the environment's installed `paddle`.

    Raises:
        ForkError: when no Paddle is there.
    """
    base = python.parent.parent
    pattern = (
        'Lib/site-packages'
        if os.name == 'nt'
        else 'lib/python3.*/site-packages'
    )
    for folder in sorted(base.glob(pattern)):
        if (folder / 'paddle' / '__init__.py').is_file():
            return folder
    raise ForkError(
        f'{base / pattern}: expected the package paddle, but found none. '
        f'Remove {base} and run the command again.'
    )
