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

"""Where the project's parts lie, and the set-up that all commands share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import wiring

from . import link_tree
from .console import ForkError, step
from .environment import clean_environ, ensure_environment, site_packages
from .lock import setup_lock

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Project:
    """The parts of one checkout of the project.

    Args:
        root(Path): the directory of README.md. Default: of this file.
    """

    root: Path = ROOT

    @property
    def overlay(self) -> Path:
        """Our files, in Paddle's layout."""
        return self.root / 'python' / 'paddle'

    @property
    def tree(self) -> Path:
        """The fork tree: what goes into PYTHONPATH."""
        return self.root / 'build' / 'python'

    @property
    def ctest(self) -> Path:
        """CMake's build directory."""
        return self.root / 'build' / 'ctest'

    @property
    def sources(self) -> Path:
        """Python files of released versions, by version."""
        return self.root / 'build' / 'sources'

    def environ(self, *more_paths: Path) -> dict[str, str]:
        """The environment in which Python finds the fork tree."""
        paths = os.pathsep.join(map(str, (self.tree, *more_paths)))
        return clean_environ(PYTHONPATH=paths)

    def set_up(self, *, with_tree: bool = True) -> Path:
        """Makes what is missing or out of date; quick when nothing is.

        Args:
            with_tree(bool, optional): also the fork tree. Default: True.

        Returns:
            Path: the interpreter of `.venv`.

        Raises:
            ForkError: with what to do about it.
        """
        with setup_lock(self.root / 'build' / '.lock'):
            python = ensure_environment(self.root)
            if with_tree:
                self.build_tree(site_packages(python))
        return python

    def base(self) -> Path:
        """The directory of the installed Paddle, which is set up first."""
        return site_packages(self.set_up(with_tree=False))

    def build_tree(self, packages: Path) -> None:
        """Builds the fork tree unless it is up to date."""
        tools = self.root / 'tools'
        stamp = link_tree.stamp_of_files(
            folders=[self.overlay, tools / 'wiring', tools / 'series'],
            # The record of an installed wheel lists the hash of each file.
            files=[
                tools / 'fork' / 'link_tree.py',
                *sorted(packages.glob('paddlepaddle*.dist-info/RECORD')),
            ],
        )
        if link_tree.is_current(self.tree, stamp):
            return
        step(f'laying the series over {packages / "paddle"}')
        plan = wiring.plan(packages, self.overlay)
        if not plan.ok:
            raise ForkError(plan.report())
        step(f'building {self.tree}')
        link_tree.build_tree(packages / 'paddle', plan.texts, self.tree, stamp)
