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

"""Many cases; what they find is confirmed, made smaller and kept."""

from __future__ import annotations

import collections
import hashlib
import itertools
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import streams
from .cases import Case, make_case
from .workers import Job, run_jobs, run_one

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .compare import Result

# How long one finding is made smaller.
MAX_SHRINK_S = 10.0

# Findings of one kind that are told; more are only counted.
_MAX_ALIKE = 3

# Findings of which one side can be the oracle a second time.
_ORACLE_CAN_STAND_IN = ('unpickled', 'paddle.load', 'safetensors', 'crash')

# How often a finding is tried again, each time in a new process.
_ATTEMPTS = 3


class Finding(NamedTuple):
    """A file over which ours and the oracle differ.

    Attributes:
        job(Job): The case.
        data(bytes): Its file, made smaller.
        what(list[str]): In what they differ.
        is_steady(bool): Whether it was found again in a new process.
    """

    job: Job
    data: bytes
    what: list[str]
    is_steady: bool

    @property
    def title(self) -> str:
        """The kind of difference."""
        return _title(self.job.target, self.what)

    @property
    def is_crash(self) -> bool:
        """Whether all that is known is that a process ended or hung."""
        return all(text.startswith('crash: ') for text in self.what)

    @property
    def file_name(self) -> str:
        """A name for the file, by kind and content."""
        digest = hashlib.sha256(self.data).hexdigest()[:12]
        return f'{self.job.target}-{digest}.bin'


class Campaign:
    """Runs cases and keeps count.

    Args:
        run_seed(int): Makes the cases.
        processes(int): How many processes check files.
        on_progress(Callable[[Campaign], None]): Is called after each case.

    Attributes:
        outcomes(dict[str, Counter]): For each target how often each outcome
            came; `parallel` counts reads in parallel that went through.
        findings(list[Finding]): What was found, at most a few of each kind.
        alike(int): Findings that are not told, for others are like them.
        unsteady(list[Finding]): Crashes that did not come again in processes
            of their own: what an earlier file did to the memory of a process
            may show itself only later.
    """

    def __init__(
        self,
        run_seed: int,
        processes: int = 2,
        on_progress: Callable[[Any], None] = lambda campaign: None,
    ) -> None:
        self.run_seed, self.processes = run_seed, processes
        self._on_progress = on_progress
        self.outcomes = collections.defaultdict(collections.Counter)
        self.findings: list[Finding] = []
        self.alike = 0
        self.unsteady: list[Finding] = []
        self._suspects: list[tuple[Job, Result]] = []
        self._titles = collections.Counter()
        self.started_s = time.monotonic()

    @property
    def cases(self) -> int:
        """How many cases were checked."""
        return sum(c.total() - c['parallel'] for c in self.outcomes.values())

    @property
    def suspects(self) -> int:
        """How many cases were found and are yet to be confirmed."""
        return len(self._suspects) + self.alike

    def run(self, jobs: Iterable[Job], shrink: bool = True) -> None:
        """Runs jobs, then looks closer at what they found."""
        run_jobs(jobs, self.processes, self._count)
        told = set()
        for job, result in self._suspects:
            finding = _confirmed(job, result)
            if finding is not None:
                if shrink and finding.is_steady and finding.title not in told:
                    told.add(finding.title)
                    finding = _shrunk(finding)
                is_chance = not finding.is_steady and finding.is_crash
                (self.unsteady if is_chance else self.findings).append(finding)
        self._suspects.clear()

    def _count(self, job, result):
        counts = self.outcomes[job.target]
        counts[result.outcome] += 1
        counts['parallel'] += result.parallel
        if result.findings:
            title = _title(job.target, result.findings)
            self._titles[title] += 1
            if self._titles[title] <= _MAX_ALIKE:
                self._suspects.append((job, result))
            else:
                self.alike += 1
        self._on_progress(self)


def generated_jobs(
    run_seed: int,
    targets: Iterable[str],
    counts: dict[str, int] | None = None,
    seconds: float | None = None,
) -> Iterator[Job]:
    """Jobs by number, the targets in turns.

    Args:
        run_seed(int): Makes the cases.
        targets(Iterable[str]): The kinds of files.
        counts(dict[str, int]|None): How many of each target. None: no limit.
        seconds(float|None): How long jobs are given out. None: no limit.
    """
    end_s = None if seconds is None else time.monotonic() + seconds
    for number in itertools.count():
        left = [
            target
            for target in targets
            if counts is None or number < counts[target]
        ]
        if not left:
            return
        for target in left:
            if end_s is not None and time.monotonic() > end_s:
                return
            yield Job(number, target, run_seed)


def corpus_jobs(directory: Path, variants: Iterable[int]) -> Iterator[Job]:
    """Jobs for the files of a corpus, `<target>-<name>.bin`.

    Args:
        directory(Path): The corpus.
        variants(Iterable[int]): In which ways each file is checked.
    """
    variants = list(variants)
    for path in sorted(directory.glob('*.bin')):
        target = path.name.partition('-')[0]
        data = path.read_bytes()
        for variant in variants:
            yield Job(variant, target, case=Case(target, data, variant))


def _title(target, findings):
    """What findings of one cause have in common: how each begins."""
    heads = {re.split(r'[: ]', text)[0] for text in findings}
    return f'{target}: {"; ".join(sorted(heads))}'


def _again(job, data=None):
    """A job that needs no making of its case."""
    case = job.case or make_case(job.target, job.run_seed, job.number)
    if data is not None:
        case = case._replace(data=data)
    return job._replace(case=case)


def _confirmed(job, result):
    """A finding, unless the oracle differs from itself too."""
    again = _again(job)
    for _ in range(_ATTEMPTS):
        repeated = run_one(again)
        if repeated.findings:
            oracle = run_one(again._replace(only_oracle=True))
            if _is_same_fault(oracle, repeated):
                return None
            return Finding(again, again.case.data, repeated.findings, True)
    return Finding(again, again.case.data, result.findings, False)


def _is_same_fault(oracle, found):
    """Whether the oracle, run in our place, is at odds in the same way."""
    return (
        bool(oracle.findings)
        and _title('', oracle.findings) == _title('', found.findings)
        and found.findings[0].startswith(_ORACLE_CAN_STAND_IN)
    )


def _shrunk(finding):
    """The same finding with parts of the file left out."""
    wanted = _title('', finding.what)
    smallest = [finding]

    def note(job, result):
        if result.findings and _title('', result.findings) == wanted:
            smallest[0] = finding._replace(
                job=job, data=job.case.data, what=result.findings
            )

    def jobs():
        for split in _SPLITS[finding.job.target == 'safetensors']:
            try:
                units = split(smallest[0].data)
            except Exception:  # what is damaged cannot always be split
                continue
            yield from _smaller(units, finding.job, lambda: smallest[0].data)

    end_s = time.monotonic() + MAX_SHRINK_S
    in_time = itertools.takewhile(lambda _: time.monotonic() < end_s, jobs())
    run_jobs(in_time, 1, note)
    return smallest[0]


def _smaller(units, job, best):
    """Jobs without some units each; the next one builds on the best so far.

    A job is asked for when the result of the one before is known.
    """
    step = max(1, len(units) // 2)
    while step:
        at = 0
        while at < len(units):
            rest = units[:at] + units[at + step :]
            data = b''.join(rest)
            yield _again(job, data)
            if best() == data:
                units = rest
            else:
                at += step
        step //= 2


def _bytes(data):
    return [data[at : at + 1] for at in range(len(data))]


_SPLITS = (
    (
        lambda data: streams.reframed(streams.parse_most(data), None),
        streams.parse_most,
        _bytes,
    ),
    (_bytes,),
)
