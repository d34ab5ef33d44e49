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

"""Differential fuzzing of the loaders; `run.py` is the command.

Files of every kind are damaged with regard to their structure, and what our
ways to read them give is compared with what the serial load gives.

    streams.py, mutations.py  pickles as lists of opcodes, and damage to them
    headers.py                damage to safetensors files
    seeds.py                  the files that are damaged
    restricted.py             lets no damaged pickle name what does harm
    targets.py, metadata.py   what is compared
    cases.py                  from the number of a case to its file and result
    workers.py                processes that may crash or hang
    campaign.py, report.py    many cases, findings made small, the report
"""
