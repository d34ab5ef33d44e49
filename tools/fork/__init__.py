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

"""Sets up and drives the fork tree: a Paddle Python tree with our series.

Flow: `environment` makes `.venv` with the pinned packages, `link_tree` lays
the planned files over links to the installed wheel, `harness` runs the tests
on that through CMake, `demo` shows the effect on a real checkpoint,
`checkout` lays the series over a Paddle source tree. What the planned files
contain is the business of the package `wiring`, not of this one.

Standard library only; `demo_worker` alone runs under `.venv` and imports
Paddle.
"""
