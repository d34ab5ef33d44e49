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

"""Two and four ranks on CPU, one of which meets a fault."""

import json
import os
import unittest

import rank_faults_case
from parameterized import parameterized
from rank_faults_case import FAULTS
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
        for name, fault in FAULTS.items():
            for faulty_rank in (0, num_ranks - 1):
                label = f'{name} {faulty_rank}'
                with self.subTest(label):
                    ranks = [result[label] for result in results]
                    self.check_outcome(fault.outcome, ranks, faulty_rank)
                    self.check_message(fault, label, ranks[faulty_rank])
                    if fault.outcome == 'reshard' and fault.fast:
                        self.check_others_know(ranks, faulty_rank)

    def check_outcome(self, expected, ranks, faulty_rank):
        for rank, seen in enumerate(ranks):
            is_faulty = rank == faulty_rank
            collectives = ranks[faulty_rank]['collectives']
            if expected == 'waits':
                self.assertEqual(seen['error'] == 'waits', not is_faulty)
                self.assertEqual(seen['values'], [0.0])  # as before
                collectives = collectives + ['bool'] * (not is_faulty)
            elif expected == 'alone' and is_faulty:
                self.assertIsNotNone(seen['error'])
                self.assertEqual(seen['values'], [0.0])
            else:
                self.assertIsNone(seen['error'])
                is_local = expected != 'reshard'
                self.assertEqual(seen['chosen'] == 'local', is_local)
                self.assertEqual(seen['values'], [(rank + 1.0) * is_local])
            self.assertEqual(seen['collectives'], collectives)

    def check_message(self, fault, label, seen):
        text = '\n'.join([seen['error'] or '', *seen['log']])
        if fault.error:
            self.assertRegex(text, fault.error)
        if fault.names_path:
            self.assertIn(label.replace(' ', '_'), text)

    def check_others_know(self, ranks, faulty_rank):
        for rank, seen in enumerate(ranks):
            if rank != faulty_rank:
                self.assertIn(f'rank {faulty_rank} cannot', str(seen['log']))


if __name__ == '__main__':
    unittest.main()
