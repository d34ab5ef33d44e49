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

"""What a run tells: progress, tables, findings as files."""

from __future__ import annotations

import json
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle
import safetensors

if TYPE_CHECKING:
    from .campaign import Campaign, Finding

# How often progress is told.
_PROGRESS_S = 10.0

OUTCOMES = ('value', 'error', 'refused', 'crash')


class Progress:
    """Tells on standard error, every now and then, how far a campaign is."""

    def __init__(self) -> None:
        self._told_s = time.monotonic()

    def __call__(self, campaign: Campaign) -> None:
        """To be called after each case."""
        if time.monotonic() - self._told_s < _PROGRESS_S:
            return
        self._told_s = time.monotonic()
        elapsed_s = self._told_s - campaign.started_s
        print(
            f'{campaign.cases} cases in {elapsed_s / 60:.1f} min, '
            f'{campaign.suspects} to be looked at',
            file=sys.stderr,
            flush=True,
        )


def summary(campaign: Campaign) -> dict[str, Any]:
    """All of a run that a machine may want to read."""
    elapsed_s = time.monotonic() - campaign.started_s
    return {
        'seed': campaign.run_seed,
        'cases': campaign.cases,
        'hours': round(elapsed_s / 3600, 4),
        'findings': [_described(finding) for finding in campaign.findings],
        'findings_alike': campaign.alike,
        'unsteady': [_described(finding) for finding in campaign.unsteady],
        'targets': {
            target: {
                'cases': counts.total() - counts['parallel'],
                **{outcome: counts[outcome] for outcome in OUTCOMES},
                'parallel': counts['parallel'],
            }
            for target, counts in sorted(campaign.outcomes.items())
        },
        'versions': {
            'python': platform.python_version(),
            'paddle': paddle.__version__,
            'numpy': np.__version__,
            'safetensors': safetensors.__version__,
        },
    }


def _described(finding: Finding) -> dict[str, Any]:
    return {
        'target': finding.job.target,
        'number': finding.job.number,
        'variant': finding.job.case.variant,
        'file': finding.file_name,
        'bytes': len(finding.data),
        'found_again': finding.is_steady,
        'what': finding.what,
    }


def table(facts: dict[str, Any]) -> str:
    """The summary for people."""
    columns = ('cases', *OUTCOMES, 'parallel')
    lines = [''.join(f'{name:>12}' for name in ('target', *columns))]
    for target, counts in facts['targets'].items():
        cells = (target, *(counts[name] for name in columns))
        lines.append(''.join(f'{cell:>12}' for cell in cells))
    count = len(facts['findings']) + facts['findings_alike']
    lines.append(
        f'{facts["cases"]} cases, {facts["hours"]:.2f} h, '
        f'seed {facts["seed"]}: {count} findings'
    )
    for finding in facts['findings']:
        again = '' if finding['found_again'] else ', not found again'
        lines.append(
            f'{finding["target"]} case {finding["number"]}, '
            f'{finding["bytes"]} bytes{again}'
        )
        lines += [f'  {text}' for text in finding['what']]
    if facts['unsteady']:
        lines.append(
            f'{len(facts["unsteady"])} crashes did not come again: what files '
            'before them left in the process may have caused them'
        )
    if facts['findings_alike']:
        lines.append(f'and {facts["findings_alike"]} like these')
    return '\n'.join(lines)


def save(
    campaign: Campaign, out: Path | None, directory: Path | None
) -> dict[str, Any]:
    """Writes what was asked for.

    Args:
        campaign(Campaign): The run.
        out(Path|None): Gets the summary as JSON.
        directory(Path|None): Gets the files of the findings.

    Returns:
        dict[str, Any]: The summary.
    """
    facts = summary(campaign)
    if directory is not None and campaign.findings:
        directory.mkdir(parents=True, exist_ok=True)
        for finding in campaign.findings:
            (directory / finding.file_name).write_bytes(finding.data)
    if out is not None:
        out.write_text(json.dumps(facts, indent=2) + '\n')
    return facts
