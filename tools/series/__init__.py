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

"""The series: what we change in Paddle, patch by patch, in order.

`PATCHES` lists the patches, one module each; `versions` says which Paddle
versions they were proven against. The vocabulary is that of `wiring`.
"""

from pathlib import Path

from wiring import Versions

from .adopt_payloads import adopt_payloads
from .fast_resumable_check import fast_resumable_check
from .load_num_workers import load_num_workers
from .load_state_dict_num_workers import load_state_dict_num_workers
from .restore_in_place import restore_in_place
from .safetensors_num_workers import safetensors_num_workers

PATCHES = [
    load_num_workers,
    load_state_dict_num_workers,
    fast_resumable_check,
    adopt_payloads,
    restore_in_place,
    safetensors_num_workers,
]

# Of the series, as CHANGELOG.md counts; patched wheels bear it.
VERSION = '0.1.0'

VERSIONS_FILE = Path(__file__).with_name('versions.json')


def versions() -> Versions:
    """The Paddle versions that the series was proven against."""
    return Versions.load(VERSIONS_FILE)
