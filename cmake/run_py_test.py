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

"""usage: run_py_test.py FOLDER MODULE [MODULE ...]

Runs the unittest modules in FOLDER. Exit codes: 0 all passed, 1 a test failed
or none was found, 77 all of them were skipped. Skipping is a choice that a
module makes with a reason, so it is told apart from passing but is no
failure; a module without tests is a mistake.
"""

import sys
import unittest

PASSED, FAILED, SKIPPED = 0, 1, 77


class CountingResult(unittest.TextTestResult):
    """Counts the tests that were run to their end."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.done_count = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.done_count += 1

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.done_count += 1


def run(folder, modules):
    """Runs the modules; returns the exit code."""
    sys.path.insert(0, folder)
    try:
        suite = unittest.defaultTestLoader.loadTestsFromNames(modules)
    except SystemExit as end:
        print(f'{", ".join(modules)}: ended with {end.code} while imported')
        return FAILED
    runner = unittest.TextTestRunner(
        verbosity=2, resultclass=CountingResult, tb_locals=False
    )
    result = runner.run(suite)
    if not result.wasSuccessful():
        return FAILED
    if result.done_count:
        return PASSED
    if result.skipped:
        return SKIPPED
    print(f'{", ".join(modules)}: expected tests, but none ran')
    return FAILED


if __name__ == '__main__':
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(run(sys.argv[1], sys.argv[2:]))
