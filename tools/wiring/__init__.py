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

"""Small, exact edits to a Paddle Python tree that we do not own.

`plan` decides what a series of patches does to a tree and reports it,
`Plan.write` writes it into a source checkout, `revert` takes it back, and
`check` looks at the series without a tree. Patches are functions marked with
`patch`; the verbs they use are methods of `Tree`, `Module` and `Function`.
"""

from .check import check, edited_files
from .outcome import (
    AlreadyApplied,
    Applied,
    Change,
    Edit,
    Failed,
    Miss,
    Outcome,
    Skipped,
)
from .plan import Plan, plan
from .tree import PatchRecord, Tree, patch
from .versions import Versions
from .writing import STATE_DIRECTORY, WriteError, revert

__all__ = [
    'STATE_DIRECTORY',
    'AlreadyApplied',
    'Applied',
    'Change',
    'Edit',
    'Failed',
    'Miss',
    'Outcome',
    'PatchRecord',
    'Plan',
    'Skipped',
    'Tree',
    'Versions',
    'WriteError',
    'check',
    'edited_files',
    'patch',
    'plan',
    'revert',
]
