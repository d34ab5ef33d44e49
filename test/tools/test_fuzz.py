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

"""Ten thousand damaged files, the corpus, and the fuzzer itself."""

import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import pickle
import pickletools
import random
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import paddle
from fuzz import (
    campaign,
    headers,
    mutations,
    restricted,
    run,
    seeds,
    streams,
    workers,
)
from fuzz.cases import TARGETS, Case, make_case, run_case
from fuzz.compare import Result
from paddle.framework import io_utils
from parameterized import parameterized

SEED = 20261129
CORPUS = Path(__file__).resolve().parents[1] / 'corpus'
PADDLE_PYTHON = str(Path(paddle.__file__).absolute().parents[1])

# Of each target; more where a reader has more ways.
COUNTS = {'pickle': 4500, 'distcp': 2500, 'metadata': 1500, 'safetensors': 1500}


class FuzzCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.directory = folder.name
        # Children import the same packages.
        paths = [PADDLE_PYTHON, str(Path(run.__file__).parents[1])]
        environment = mock.patch.dict(
            os.environ,
            PYTHONPATH=os.pathsep.join(paths),
            PYTHONWARNINGS='ignore',
        )
        environment.start()
        self.addCleanup(environment.stop)

    def run_one(self, case):
        return run_case(case, self.directory)

    def check_none_found(self, done):
        for finding in done.findings:
            self.fail(
                f'seed {SEED}, {finding.job.target} case {finding.job.number}, '
                f'variant {finding.job.case.variant}: {finding.what}\n'
                f'{finding.data[:2000]!r}'
            )
        self.assertEqual(done.alike, 0)


class TestDamagedFiles(FuzzCase):
    def test_ten_thousand_mutants(self):
        done = campaign.Campaign(SEED)
        done.run(campaign.generated_jobs(SEED, TARGETS, COUNTS))
        self.check_none_found(done)
        self.assertEqual(done.cases, sum(COUNTS.values()))
        # Enough of each has come far enough to tell something.
        for target, counts in done.outcomes.items():
            with self.subTest(target=target, counts=dict(counts)):
                self.assertGreater(counts['value'], COUNTS[target] // 10)
                self.assertGreater(
                    counts['error'] + counts['refused'], COUNTS[target] // 10
                )
                self.assertLess(counts['crash'], COUNTS[target] // 100)
                self.assertGreater(counts['parallel'], COUNTS[target] // 20)

    def test_corpus(self):
        done = campaign.Campaign(SEED)
        done.run(campaign.corpus_jobs(CORPUS, range(run.CORPUS_VARIANTS)))
        self.check_none_found(done)
        files = sorted(path.name for path in CORPUS.glob('*.bin'))
        self.assertEqual(done.cases, len(files) * run.CORPUS_VARIANTS)

    def test_corpus_is_described(self):
        text = (CORPUS / 'README.md').read_text()
        for path in CORPUS.glob('*.bin'):
            self.assertIn(f'`{path.name}`', text)
            self.assertLess(path.stat().st_size, 100_000)


class TestFaultsAreFound(FuzzCase):
    """The checks bite: each fault in our readers makes a finding."""

    def first_finding(self, target, end=400):
        """In copies of this process, for numpy crashes over some files."""
        context = multiprocessing.get_context('fork')
        start = 0
        while start < end:
            ours, theirs = context.Pipe()
            copy = context.Process(
                target=self.send_findings, args=(theirs, target, start, end)
            )
            copy.start()
            theirs.close()
            with ours, contextlib.suppress(EOFError):
                while start < end:
                    findings = ours.recv()
                    if findings:
                        copy.kill()
                        copy.join()
                        return findings[0]
                    start += 1
            copy.join()
            start += 1
        return None

    def send_findings(self, connection, target, start, end):
        for number in range(start, end):
            result = self.run_one(make_case(target, SEED, number))
            connection.send(result.findings)

    def test_payload_with_a_wrong_byte(self):
        take = io_utils._ParallelPayloads.take

        def wrong(reader):
            value = take(reader)
            if isinstance(value, bytearray) and value:
                value[-1] ^= 1
            return value

        with mock.patch.object(io_utils._ParallelPayloads, 'take', wrong):
            self.assertRegex(self.first_finding('pickle'), '^unpickled: ')
            self.assertRegex(self.first_finding('safetensors'), '^safetensors')

    def test_reads_that_cross_the_end_of_a_frame(self):
        data = (CORPUS / 'pickle-frame_ends_in_argument.bin').read_bytes()
        with mock.patch.object(io_utils, '_MAX_LONG_READS', 10**9):
            findings = [
                text
                for variant in range(run.CORPUS_VARIANTS)
                for text in self.run_one(Case('pickle', data, variant)).findings
            ]
        self.assertRegex(findings[0], '^unpickled: ')

    def test_error_in_place_of_a_refusal(self):
        from paddle.distributed.flex_checkpoint.dcp import distcp_reader

        with mock.patch.object(
            distcp_reader, 'DistcpFormatError', RuntimeError
        ):
            self.assertRegex(self.first_finding('distcp'), 'scan')

    def test_descriptor_that_is_left(self):
        reader = io_utils._read_at

        def leaking(fd, offset, length):
            os.dup(fd)
            return reader(fd, offset, length)

        with mock.patch.object(io_utils, '_read_at', leaking):
            found = self.first_finding('pickle')
        self.assertEqual(found, 'descriptors are left open')

    def test_permissive_check(self):
        from fuzz import metadata

        with mock.patch.object(
            metadata, 'check_resumable_locally_fast', return_value=True
        ):
            self.assertRegex(self.first_finding('metadata'), '^fast check')


class TestCases(FuzzCase):
    @parameterized.expand([(target,) for target in TARGETS])
    def test_same_in_every_process(self, target):
        def digest():
            found = hashlib.sha256()
            for number in range(200):
                found.update(make_case(target, SEED, number).data)
            return found.hexdigest()

        code = (
            'import hashlib; from fuzz.cases import make_case\n'
            'found = hashlib.sha256()\n'
            'for number in range(200):\n'
            f'    found.update(make_case({target!r}, {SEED}, number).data)\n'
            'print(found.hexdigest())'
        )
        output = subprocess.run(
            [sys.executable, '-c', code],
            env={**os.environ, 'PYTHONHASHSEED': '7'},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        self.assertEqual(output.split()[-1], digest())

    @parameterized.expand([(target,) for target in TARGETS])
    def test_seeds_are_loaded_as_they_are(self, target):
        kinds = set()
        for number in range(seeds.SEEDS_PER_KIND):
            file = seeds.seed(target, number)
            data = file if isinstance(file, bytes) else file.data
            result = self.run_one(Case(target, data, number))
            self.assertEqual(result.findings, [], number)
            kinds.add(result.outcome)
        self.assertIn('value', kinds)
        self.assertNotIn('error', kinds)

    def test_names_beyond_the_harmless_are_refused(self):
        for data in b'cos\ngetpid\n(tR.', b'cbuiltins\neval\n(V1\ntR.':
            result = self.run_one(Case('pickle', data, 0))
            self.assertEqual((result.outcome, result.findings), ('error', []))

    def test_classes_are_as_before(self):
        """BUILD sets attributes of classes, for the whole process."""
        from paddle.distributed.flex_checkpoint.dcp.metadata import Metadata

        name = f'c{Metadata.__module__}\nMetadata\n'.encode()
        data = name + b'(N(Vodd\nI1\ndtb.'
        self.assertEqual(self.run_one(Case('pickle', data, 0)).findings, [])
        self.assertTrue(Metadata.odd)
        restricted.reset_classes()
        self.assertFalse(hasattr(Metadata, 'odd'))


class TestMutations(unittest.TestCase):
    def setUp(self):
        value = {'w': np.zeros(100, 'f4'), 'b': bytes(70_000), 'n': 7}
        self.data = pickle.dumps(value, 4)
        self.pieces = streams.parse(self.data)

    def test_pieces_are_the_stream(self):
        self.assertEqual(b''.join(self.pieces), self.data)
        self.assertEqual(
            [piece[:1].decode('latin1') for piece in self.pieces],
            [opcode.code for opcode, _, _ in pickletools.genops(self.data)],
        )
        damaged = self.data[:-20] + b'\xff' * 20
        self.assertEqual(b''.join(streams.parse_most(damaged)), damaged)

    @parameterized.expand([(None,), (1,), (64,), (100_000,)])
    def test_other_frames_same_value(self, target_bytes):
        pieces = streams.reframed(self.pieces, target_bytes)
        self.assertEqual(pickle.loads(b''.join(pieces))['b'], bytes(70_000))
        frames = sum(piece[:1] == streams.FRAME for piece in pieces)
        self.assertEqual(frames == 0, target_bytes is None)

    def test_frames_are_set_right(self):
        pieces = list(self.pieces)
        pieces.insert(3, b'N0')
        self.assertEqual(pieces[1], self.pieces[1])
        repaired = streams.repaired(pieces, 64 * 1024)

        def is_frame(piece):
            return piece[:1] == streams.FRAME

        def is_large(piece):
            return streams.is_payload(piece, 64 * 1024)

        for stream, is_right in (pieces, False), (repaired, True):
            first = stream.index(next(filter(is_frame, stream)))
            second = stream.index(next(filter(is_large, stream)))
            claimed = int.from_bytes(stream[first][1:], 'little')
            content = sum(map(len, stream[first + 1 : second]))
            self.assertEqual(claimed == content, is_right)
        self.assertEqual(pickle.loads(b''.join(repaired))['n'], 7)

    @parameterized.expand([(kind.__name__, kind) for kind in mutations.WEIGHTS])
    def test_kind_does_its_damage(self, _, kind):
        other = streams.parse(pickle.dumps([1.5, 'text', bytes(300)], 4))
        # Protocol 2 names classes in a way of its own.
        stream = [*self.pieces, *streams.parse(pickle.dumps(np.ones(3), 2))]
        changed = 0
        for number in range(20):
            damaged = list(stream)
            kind(random.Random(number), damaged, other)
            changed += damaged != stream
        self.assertGreater(changed, 10)

    def test_lengths_reach_every_extreme(self):
        rng, lengths = random.Random(SEED), set()
        for _ in range(3000):
            pieces = [streams.payload(b'abc', b'\x8e')]
            mutations.change_length(rng, pieces, [])
            lengths.add(int.from_bytes(pieces[0][1:9], 'little'))
        self.assertLessEqual({0, 2, 4, 2**63, 2**64 - 1}, lengths)

    def test_safetensors_header(self):
        data = seeds.seed('safetensors', 0)
        header, body = headers.parse(data)
        self.assertTrue(data.endswith(body))
        changed = {
            headers.mutate(random.Random(n), data, data) for n in range(200)
        }
        self.assertGreater(len(changed), 100)


class TestWorkers(FuzzCase):
    def run_two(self, signal_number):
        """Two jobs; the process of the first gets a signal beforehand."""
        give, results = workers._Process.give, {}

        def harmed(process, job):
            if job.number == 0:
                os.kill(process._process.pid, signal_number)
            give(process, job)

        jobs = campaign.generated_jobs(SEED, ['pickle'], {'pickle': 2})
        with mock.patch.object(workers._Process, 'give', harmed):
            workers.run_jobs(
                jobs, 1, lambda job, result: results.update({job: result})
            )
        first, second = results.values()
        self.assertEqual(second.findings, [])
        self.assertNotEqual(second.outcome, 'crash')
        return first

    def test_process_that_ends(self):
        found = self.run_two(signal.SIGKILL)
        self.assertEqual(found.outcome, 'crash')
        self.assertIn('exit code -9, while start', found.findings[0])

    def test_process_that_hangs(self):
        # The second job may take the time that it takes.
        with mock.patch.object(workers, 'MAX_CASE_S', 5.0):
            found = self.run_two(signal.SIGSTOP)
        self.assertEqual(found.outcome, 'crash')
        self.assertIn('no answer within 5 s, while start', found.findings[0])

    def test_no_answer_of_the_oracle_is_no_finding(self):
        process = workers._Process.__new__(workers._Process)
        process.stage = 'oracle'
        self.assertEqual(process._lost('...'), Result('crash', False, []))

    def test_fault_of_the_fuzzer_is_told(self):
        [job] = [workers.Job(0, 'pickle', case=Case('no such', b'', 0))]
        found = workers.run_one(job)
        self.assertRegex(found.findings[0], '^fuzzer: .*(?s:.)*KeyError')


class TestFindings(FuzzCase):
    def test_made_smaller(self):
        data = pickle.dumps({'w': 'x' * 500, 'v': list(range(50))}, 4)
        job = workers.Job(0, 'pickle', case=Case('pickle', data, 0))

        def run_jobs(jobs, processes, on_result):
            for each in jobs:
                found = ['odd: x'] if b'xx' in each.case.data else []
                on_result(each, Result('value', False, found))

        with mock.patch.object(campaign, 'run_jobs', run_jobs):
            finding = campaign._shrunk(
                campaign.Finding(job, data, ['odd: x'], True)
            )
        self.assertEqual(finding.data, b'xx')

    def test_oracle_that_differs_from_itself_is_no_finding(self):
        job = workers.Job(0, 'pickle', SEED)
        odd = Result('value', False, ['unpickled: a, but b'])
        with mock.patch.object(campaign, 'run_one', return_value=odd):
            self.assertIsNone(campaign._confirmed(job, odd))
        with mock.patch.object(
            campaign, 'run_one', return_value=Result('value', False, [])
        ):
            finding = campaign._confirmed(job, odd)
        self.assertFalse(finding.is_steady)


class TestCommand(FuzzCase):
    def call(self, *arguments):
        output, errors = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(errors),
        ):
            try:
                code = run.main(['--python-tree', PADDLE_PYTHON, *arguments])
            except SystemExit as error:
                code = error.code
        return code, output.getvalue(), errors.getvalue()

    def test_nothing_found(self):
        path = Path(self.directory, 'report.json')
        code, output, _ = self.call(
            '--cases=5', f'--seed={SEED}', f'--out={path}'
        )
        self.assertEqual(code, 0, output)
        self.assertIn('20 cases', output)
        facts = json.loads(path.read_text())
        self.assertEqual(facts['findings'], [])
        self.assertEqual(set(facts['targets']), set(TARGETS))
        self.assertEqual(facts['targets']['pickle']['cases'], 5)

    def test_found(self):
        job = workers.Job(3, 'pickle', case=Case('pickle', b'N.', 9))
        folder = Path(self.directory, 'found')

        def found(done, jobs):
            done.findings.append(
                campaign.Finding(job, b'N.', ['unpickled: odd'], True)
            )

        with mock.patch.object(campaign.Campaign, 'run', found):
            code, output, _ = self.call(f'--save={folder}')
        self.assertEqual(code, 1)
        self.assertIn('unpickled: odd', output)
        [path] = folder.iterdir()
        self.assertRegex(path.name, r'^pickle-[0-9a-f]{12}\.bin$')
        self.assertEqual(path.read_bytes(), b'N.')

    @parameterized.expand(
        [
            (['--minutes=0'], 'expected a number above 0'),
            (['--minutes=1', '--cases=1'], 'not allowed with'),
            (['--case=1'], 'expected one --target'),
            (['--corpus={}/absent'], 'expected a directory'),
            (['--out={}/absent/file'], 'a directory that exists'),
            (['--python-tree={}'], 'expected the package paddle'),
            (['--target=onnx'], 'invalid choice'),
        ]
    )
    def test_wrong_usage(self, arguments, message):
        arguments = [text.format(self.directory) for text in arguments]
        code, _, errors = self.call(*arguments)
        self.assertEqual(code, 2)
        self.assertIn(message, errors)


if __name__ == '__main__':
    unittest.main()
