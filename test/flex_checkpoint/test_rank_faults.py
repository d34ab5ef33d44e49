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

"""Two and four ranks on CPU, some of which meet a fault."""

import json
import os
import unittest

import rank_faults_case
from parameterized import parameterized
from rank_faults_case import FAULTS, cases
from ranks_case import RanksCase

# What hangs is ended; a launch takes 10 s, and 20 s more if a rank dies: that is
# how long the others and the launcher take to give up.
LIMIT_S = 60


class TestRankFaults(RanksCase):
    @parameterized.expand([('died', 2), ('ended', 4)])
    def test_outcome_is_common(self, end, num_ranks):
        """In the end the last rank may be killed within a load."""
        status, output = self.launch(
            *(num_ranks, rank_faults_case.__file__, self.folder, end),
            limit_s=LIMIT_S,
        )
        if end == 'died':
            self.assertNotEqual(status, 0)
            self.assertRegex(output, rf'rank=\[.*\b{num_ranks - 1}\b.*aborted')
        else:
            self.assertEqual(status, 0, output[-5000:])
        results = []
        for rank in range(num_ranks):
            path = os.path.join(self.folder, f'{rank}.json')
            self.assertTrue(os.path.exists(path), output[-5000:])
            with open(path) as f:
                results.append(json.load(f))
        for case in cases(num_ranks):
            with self.subTest(case.label):
                fault = FAULTS[case.name]
                seen = {
                    rank: results[rank][case.label] for rank in case.members
                }
                self.check_outcome(fault, case, seen)
                for rank in case.faulty_ranks:
                    self.check_message(fault, f'{case.label}_of', seen[rank])

    def check_outcome(self, fault, case, seen_by):
        """All ranks: the outcome, what is restored, and the collectives."""
        outcome = fault.outcome
        for rank, seen in seen_by.items():
            is_faulty = rank in case.faulty_ranks
            collectives = seen_by[case.faulty_ranks[0]]['collectives']
            values = [rank + 1.0]
            if outcome == 'waits':
                self.assertEqual(seen['error'] == 'waits', not is_faulty)
                if not is_faulty:
                    collectives = collectives + ['gather']
                values = [0.0] if is_faulty else seen['values']
            elif outcome.startswith('fails') and not is_faulty:
                self.check_failure_of_others(fault, case, seen['error'])
                values = [rank + 1.0] if outcome == 'fails_late' else [0.0]
            elif is_faulty and outcome in ('fails', 'fails_late', 'alone'):
                self.assertIsNotNone(seen['error'])
                self.assertNotIn('RankFailedError', seen['error'])
                values = [0.0]
            else:
                self.assertIsNone(seen['error'])
                is_local = outcome != 'reshard'
                self.assertEqual(seen['chosen'] == 'local', is_local)
                values = [(rank + 1.0) * is_local]
                if not is_local and not is_faulty and fault.fast:
                    self.assertRegex(
                        str(seen['log']),
                        f'rank {case.faulty_ranks[0]}( and 1 other)? cannot',
                    )
            self.assertEqual(seen['values'], values)
            self.assertEqual(seen['collectives'], collectives)

    def check_failure_of_others(self, fault, case, error):
        rank = case.faulty_ranks[0]
        self.assertRegex(
            error,
            rf"(?s)^RankFailedError: .*rank {rank} failed to load '.*"
            rf"{case.label}_of_{rank}': .*({fault.error})",
        )
        if fault.outcome == 'fails_late':
            self.assertIn('this rank restored its tensors, but', error)
            for rank in case.faulty_ranks:
                self.assertIn(f'rank {rank} failed', error)

    def check_message(self, fault, path, seen):
        text = '\n'.join([seen['error'] or '', *seen['log']])
        if fault.error:
            self.assertRegex(text, fault.error)
        if fault.names_path:
            self.assertIn(path, text)


if __name__ == '__main__':
    unittest.main()
