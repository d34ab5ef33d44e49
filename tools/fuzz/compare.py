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

"""What a check finds, and what two loads of one file have in common."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import paddle.framework.io
from paddle.framework import io_utils

from . import restricted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]

# The tests' own: what loads must have in common, what they may leave.
sys.path.append(str(ROOT / 'test' / 'legacy_test'))
case = importlib.import_module('num_workers_case')
sys.path.pop()

# Differ from load to load: addresses, and names that Paddle numbers.
_CHANCE = re.compile(r'\b0x[0-9a-f]+\b|\b(?:eager_tmp|generated_\w+?)_\d+\b')
_SHOWN_LETTERS = 300


class Result(NamedTuple):
    """What came of one file.

    Attributes:
        outcome(str): How our ways of reading it ended: `value` or `error`, as
            the oracle's; `refused`; `crash` if the oracle has no answer.
        parallel(bool): Whether a parallel read went through to its end.
        findings(list[str]): Where they differ from the oracle; none is good.
    """

    outcome: str
    parallel: bool
    findings: list[str]


class Check:
    """One file under test.

    Args:
        data(bytes): Its content.
        variant(int): Chooses thresholds, options and what is restored.
        directory(str): An empty directory.
        announce(Callable[[str], None]): Is told `oracle` or `ours` before
            either is at work, for it may end the process.
        only_oracle(bool): Whether the oracle stands in for ours too, to see
            what it does twice.
    """

    def __init__(
        self,
        data: bytes,
        variant: int,
        directory: str,
        announce: Callable[[str], None] = lambda stage: None,
        only_oracle: bool = False,
    ) -> None:
        self.data, self.directory = data, directory
        self._variant = variant
        self._announce = announce
        self.only_oracle = only_oracle
        self.findings: list[str] = []
        self.workers = 1 if only_oracle else self.choose(2, 4)

    def choose(self, *options: Any) -> Any:
        """One of the options, by the next digit of the variant."""
        self._variant, digit = divmod(self._variant, len(options))
        return options[digit]

    def write(self, name: str) -> str:
        """Writes the file; its path."""
        path = os.path.join(self.directory, name)
        with open(path, 'wb') as f:
            f.write(self.data)
        return path

    def oracle(self, call: Callable, *args: Any, **options: Any) -> tuple:
        """The outcome of what is right by definition."""
        return self._outcome('oracle', call, args, options)

    def ours(self, call: Callable, *args: Any, **options: Any) -> tuple:
        """The outcome of what is tested."""
        return self._outcome('ours', call, args, options)

    def _outcome(self, stage, call, args, options):
        restricted.reset_classes()
        restricted.asked.clear()
        self._announce(stage)
        return case.outcome(call, *args, **options)

    def require(self, condition: Any, what: str) -> None:
        """Notes a finding unless a condition holds."""
        if not condition:
            self.findings.append(what)

    def require_same(self, what: str, expected: Any, found: Any) -> None:
        """Notes a finding if two outcomes differ by more than chance."""
        if expected == found or steady(expected) == steady(found):
            return
        self.findings.append(
            f'{what}: expected {shown(expected)}, but received {shown(found)}'
        )


def steady(value: Any) -> str:
    """A text without what differs from load to load."""
    return _CHANCE.sub('?', repr(value))


def shown(value: Any) -> str:
    """A text of bounded length."""
    return case.shortened(value, _SHOWN_LETTERS)


@contextlib.contextmanager
def thresholds(check: Check) -> Iterator[None]:
    """Lets small files take the parallel path, in ways that vary."""
    with mock.patch.multiple(
        io_utils,
        _MIN_PARALLEL_BYTES=1,
        _MIN_PARALLEL_PAYLOAD_BYTES=check.choose(1, 200, 64 * 1024),
        _PIECE_BYTES=check.choose(10_000, 100),
        _MIN_PIECE_BYTES=1,
        _MAX_IDLE_OPCODES=check.choose(1000, 8),
        _WINDOW_BYTES=check.choose(512, 64),
    ):
        yield


@contextlib.contextmanager
def guarded() -> Iterator[Callable[[list[str]], None]]:
    """Restricts what pickles name and silences the log.

    Yields a function that notes what a check has left behind.
    """
    logging.disable(logging.CRITICAL)
    try:
        with mock.patch.object(
            paddle.framework.io, 'pickle', restricted.module()
        ):
            descriptors = case.open_descriptors()

            def note_leftovers(findings: list[str]) -> None:
                if case.load_threads():
                    findings.append('threads are left')
                if case.open_descriptors() != descriptors:
                    findings.append('descriptors are left open')

            yield note_leftovers
    finally:
        logging.disable(logging.NOTSET)


def scratch() -> tempfile.TemporaryDirectory:
    """A directory in memory, if there is one, that is removed at exit."""
    memory = '/dev/shm'
    parent = memory if os.access(memory, os.W_OK) else None
    return tempfile.TemporaryDirectory(prefix='paddle_fuzz_', dir=parent)
