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

"""From the number of a case to its file, and from a file to a result."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from . import headers, mutations
from .compare import Check, Result, guarded
from .seeds import SEEDS_PER_KIND, seed
from .targets import CHECKS

if TYPE_CHECKING:
    from collections.abc import Callable

TARGETS = tuple(CHECKS)

# Digits for all the choices that a check makes.
VARIANTS = 1 << 20


class Case(NamedTuple):
    """A file to check.

    Attributes:
        target(str): The kind of file.
        data(bytes): Its content.
        variant(int): Chooses how it is checked, up to `VARIANTS`.
    """

    target: str
    data: bytes
    variant: int


def make_case(target: str, run_seed: int, number: int) -> Case:
    """The case of that number, the same in each process.

    Args:
        target(str): One of `TARGETS`.
        run_seed(int): The seed of the run.
        number(int): Which case of the run.
    """
    rng = random.Random(f'{run_seed} {target} {number}')
    file, other = (
        seed(target, rng.randrange(SEEDS_PER_KIND)) for _ in range(2)
    )
    variant = rng.randrange(VARIANTS)
    if target == 'safetensors':
        return Case(target, headers.mutate(rng, file, other), variant)
    data = mutations.mutate(rng, file.pieces, other.pieces, file.target_bytes)
    return Case(target, data, variant)


def run_case(
    case: Case,
    directory: str,
    announce: Callable[[str], None] = lambda stage: None,
    only_oracle: bool = False,
) -> Result:
    """Checks one file; `Check` tells what the arguments are."""
    with guarded() as note_leftovers:
        check = Check(case.data, case.variant, directory, announce, only_oracle)
        result = CHECKS[case.target](check)
        note_leftovers(result.findings)
    return result
