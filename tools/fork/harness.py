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

"""Configures and runs the tests through CMake and CTest."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

from .console import EXIT_FAILED, EXIT_OK, EXIT_USAGE, ForkError, step
from .environment import clean_environ

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .project import Project

# A result line of CTest: ` 3/12 Test  #3: test_x ....***Failed  1.20 sec`.
RESULT_LINE = re.compile(r'\s*\d+/\d+ Test\s+#\d+: \S+ \.*\s*(?P<result>.*)')
# Options with which CTest prints something and runs nothing.
SHOW_ONLY = re.compile(r'-N|--show-only|--print-labels|-h|--help|--version')


def run_tests(
    project: Project,
    ctest_args: Sequence[str],
    paddle_python: Path | None,
    *,
    sanitize: bool = False,
) -> int:
    """Sets up, configures, runs the tests and counts them.

    Args:
        project(Project): whose tests.
        ctest_args(Sequence): handed to ctest as they are.
        paddle_python(Path, optional): directory that holds the package
            `paddle` to test. Default: None, the fork tree.
        sanitize(bool, optional): run what goes to Paddle, and that alone,
            under AddressSanitizer. Default: False.

    Returns:
        int: EXIT_OK when tests ran and all of them passed.

    Raises:
        ForkError: set-up or configuration failed, or there is no sanitizer.
    """
    tree = paddle_python or project.tree
    if paddle_python and not (tree / 'paddle' / '__init__.py').is_file():
        raise ForkError(
            f'{tree}: expected a directory that holds the package paddle',
            EXIT_USAGE,
        )
    python = project.set_up(with_tree=paddle_python is None)
    search_path = os.pathsep.join([*os.get_exec_path(), str(python.parent)])
    variables = sanitizer_variables(project, python, tree) if sanitize else []
    configure(project, python, tree, search_path, variables)
    step('running the tests')
    counts, exit_code = run_ctest(project.ctest, ctest_args, search_path)
    if any(SHOW_ONLY.match(arg) for arg in ctest_args):
        return EXIT_OK if exit_code == 0 else EXIT_FAILED
    print(summary(counts), flush=True)
    if exit_code == 0 and counts['passed'] == 0:
        step('no test ran')
    passed = exit_code == 0 and counts['passed'] > 0
    return EXIT_OK if passed else EXIT_FAILED


def sanitizer_variables(
    project: Project, python: Path, tree: Path
) -> list[str]:
    """The environment of a test under AddressSanitizer, as NAME=VALUE."""
    helper = project.root / 'test' / 'legacy_test' / 'sanitizer_case.py'
    done = subprocess.run(
        [python, helper, project.root / 'build' / 'sanitizer'],
        env=clean_environ(PYTHONPATH=str(tree)),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise ForkError(done.stderr.strip())
    return done.stdout.splitlines()


def configure(
    project: Project,
    python: Path,
    tree: Path,
    search_path: str,
    variables: Sequence[str] = (),
) -> None:
    """Runs CMake; on a build directory it cannot use, once more from none."""
    cmake = find_tool('cmake', search_path)
    command = [
        cmake,
        *('-S', project.root, '-B', project.ctest, '-G', 'Ninja'),
        f'-DCMAKE_MAKE_PROGRAM={find_tool("ninja", search_path)}',
        f'-DPython3_EXECUTABLE={python}',
        f'-DPADDLE_PYTHON={tree.resolve()}',
        # Also when there are none: CMake remembers the last ones.
        f'-DPY_TEST_ENVS={";".join(variables)}',
    ]
    step(f'configuring {project.ctest}')
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0 and project.ctest.exists():
        # Of another generator, or the checkout has moved since.
        shutil.rmtree(project.ctest)
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise ForkError(f'{done.stdout}{done.stderr}cmake failed (see above)')


def find_tool(name: str, search_path: str) -> str:
    """Path of a program that the set-up made sure of."""
    found = shutil.which(name, path=search_path)
    if found is None:
        raise ForkError(f'expected {name} in PATH or .venv, but found none')
    return found


def run_ctest(
    build: Path, ctest_args: Sequence[str], search_path: str
) -> tuple[Counter[str], int]:
    """Runs CTest, shows its output as it comes, and counts the results."""
    environ = {'CTEST_PARALLEL_LEVEL': str(os.cpu_count() or 1), **os.environ}
    command = [
        find_tool('ctest', search_path),
        *('--output-on-failure', '--no-tests=error'),
        *ctest_args,
    ]
    counts: Counter[str] = Counter()
    with subprocess.Popen(
        command,
        cwd=build,
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        errors='replace',
    ) as process:
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            found = RESULT_LINE.match(line)
            if found:
                counts[outcome(found['result'])] += 1
    return counts, process.returncode


def outcome(result: str) -> str:
    """Which count a result of CTest belongs to."""
    if result.startswith('Passed'):
        return 'passed'
    if result.startswith(('***Skipped', '***Not Run (Disabled)')):
        return 'skipped'
    return 'failed'


def summary(counts: Counter[str]) -> str:
    """The closing line: how many test modules passed, failed, skipped."""
    line = f'{counts["passed"]} passed, {counts["failed"]} failed'
    if counts['skipped']:
        line += f', {counts["skipped"]} skipped'
    return line
