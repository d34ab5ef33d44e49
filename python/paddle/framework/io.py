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

from __future__ import annotations

from typing import TYPE_CHECKING

# Used where the wiring puts calls of them.
from .io_utils import _load_pickle, _resolve_num_workers  # noqa: F401

if TYPE_CHECKING:
    from typing import TypedDict

    from typing_extensions import NotRequired

    class _LoadOptions(TypedDict):
        safetensors: NotRequired[bool]
        num_workers: NotRequired[int | None]
