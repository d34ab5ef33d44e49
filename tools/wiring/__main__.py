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

"""Look after the series: `python3 tools/wiring check` or `record TREE`.

check   list what is wrong with the series by itself; needs no Paddle
record  take the files of a tree (a directory that holds `paddle/`, as Paddle
        ships it) as proven, after every patch was found to fit

Exit status: 0 all is well, 1 there are problems, 2 wrong usage.
"""

import argparse
import importlib
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[1]
OVERLAY = TOOLS.parent / 'python' / 'paddle'


def main() -> int:
    sys.path.insert(0, str(TOOLS))  # run as a directory, it is not there
    wiring, series = map(importlib.import_module, ('wiring', 'series'))

    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest='command', required=True)
    commands.add_parser('check')
    commands.add_parser('record').add_argument('tree', type=Path)
    arguments = parser.parse_args()
    problems = wiring.check(OVERLAY)
    print(*problems, sep='\n', end='\n' if problems else '')
    if arguments.command == 'record' and not problems:
        plan = wiring.plan(arguments.tree, OVERLAY)
        print(plan.report())
        if not all(isinstance(o, wiring.Applied) for o in plan.outcomes):
            return 1
        versions = series.versions()
        files = wiring.edited_files(series.PATCHES)
        version = versions.record(arguments.tree / 'paddle', files)
        versions.save(series.VERSIONS_FILE)
        print(f'recorded Paddle {version}')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
