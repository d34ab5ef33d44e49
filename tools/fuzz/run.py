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

"""Damages files and compares what our ways of reading them give with what the
serial load gives.

For each target files of all writers are made, damaged with regard to their
structure, and read in both ways, in processes with bounded memory. Over one
file the ways may end in these manners:

  value     both give the same
  error     both raise the same
  refused   a reader that may refuse a file did so
  crash     the serial load ends the process already, or takes all its time
  finding   they differ, or something is left over, or ours alone crashes

A finding is tried again in new processes and made smaller; with --save it can
be put into test/corpus as it is, where the tests will check it from then on.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if not __package__:  # run by its path
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.common import ROOT, BenchError, use_paddle

TARGET_NAMES = ('pickle', 'distcp', 'metadata', 'safetensors')
CORPUS = ROOT / 'test' / 'corpus'

# How many ways a file of the corpus is checked.
CORPUS_VARIANTS = 24


def _positive(kind):
    def parse(text):
        number = kind(text)
        if not number > 0:
            raise argparse.ArgumentTypeError(
                f'expected a number above 0, but received {text!r}'
            )
        return number

    parse.__name__ = kind.__name__
    return parse


def parser() -> argparse.ArgumentParser:
    """The options."""
    result = argparse.ArgumentParser(
        prog='tools/fuzz/run.py',
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        epilog='exit code: 0 nothing found, 1 something found, 2 wrong usage',
    )
    length = result.add_mutually_exclusive_group()
    length.add_argument(
        '--minutes',
        type=_positive(float),
        metavar='N',
        help='how long to go on; default: 1',
    )
    length.add_argument(
        '--cases',
        type=_positive(int),
        metavar='N',
        help='how many files of each target instead',
    )
    length.add_argument(
        '--case',
        type=int,
        metavar='N',
        help='only the case of that number, of one --target',
    )
    length.add_argument(
        '--corpus',
        type=Path,
        metavar='DIR',
        nargs='?',
        const=CORPUS,
        help='only the files of a corpus, <target>-<name>.bin;\n'
        'default: test/corpus',
    )
    result.add_argument(
        '--target',
        choices=(*TARGET_NAMES, 'all'),
        default='all',
        help='which kind of files; default: all in turns',
    )
    result.add_argument(
        '--seed',
        type=int,
        default=20261129,
        metavar='N',
        help='makes the cases: the same seed and number, the\n'
        'same file; default: %(default)s',
    )
    result.add_argument(
        '--jobs',
        type=_positive(int),
        default=2,
        metavar='N',
        help='processes at once; default: 2',
    )
    result.add_argument(
        '--out', type=Path, metavar='FILE', help='write a report as JSON'
    )
    result.add_argument(
        '--save', type=Path, metavar='DIR', help='write the files found there'
    )
    result.add_argument(
        '--python-tree',
        type=Path,
        default=ROOT / 'build' / 'python',
        metavar='DIR',
        help='which package paddle to test;\ndefault: build/python',
    )
    return result


def _jobs(options):
    from fuzz import campaign, workers

    targets = TARGET_NAMES
    if options.target != 'all':
        targets = (options.target,)
    if options.corpus is not None:
        jobs = campaign.corpus_jobs(options.corpus, range(CORPUS_VARIANTS))
        return (job for job in jobs if job.target in targets)
    if options.case is not None:
        return iter([workers.Job(options.case, targets[0], options.seed)])
    counts = options.cases and dict.fromkeys(targets, options.cases)
    seconds = None if counts else 60 * (options.minutes or 1)
    return campaign.generated_jobs(options.seed, targets, counts, seconds)


def _check(usage, options):
    if options.case is not None and options.target == 'all':
        usage.error('--case: expected one --target, but received all')
    if options.corpus is not None and not options.corpus.is_dir():
        usage.error(
            f'--corpus: expected a directory, but received {options.corpus}'
        )
    if options.out is not None and not options.out.parent.is_dir():
        usage.error(
            f'--out: expected a file in a directory that exists, '
            f'but received {options.out}'
        )
    try:
        use_paddle(options.python_tree)
    except BenchError as error:
        usage.error(f'--python-tree: {error}')


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; `arguments` are those of the command line."""
    usage = parser()
    options = usage.parse_args(arguments)
    _check(usage, options)
    from fuzz import campaign, report

    run = campaign.Campaign(options.seed, options.jobs, report.Progress())
    try:
        run.run(_jobs(options))
    except KeyboardInterrupt:
        print('interrupted; this is what there is so far', file=sys.stderr)
    facts = report.save(run, options.out, options.save)
    print(report.table(facts))
    return 1 if facts['findings'] or facts['findings_alike'] else 0


if __name__ == '__main__':
    sys.exit(main())
