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

"""`python setup.py bdist_wheel [--dist-dir DIR]`: Paddle with the series.

`pip install .` goes the same way, through the backend in pyproject.toml.
"""

import sys
from pathlib import Path

if sys.version_info < (3, 10):  # noqa: UP036
    sys.exit(
        'setup.py: expected Python 3.10 or newer, but this is %d.%d'  # noqa: UP031
        % sys.version_info[:2]
    )

sys.path.insert(0, str(Path(__file__).resolve().parent / 'tools'))

from fork.wheel import main

if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
