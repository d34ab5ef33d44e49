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
"""What a rank gathers when it fails, and what it raises; no ranks needed."""

import os
import pickle
import shutil
import signal
import unittest
from unittest import mock

import paddle
import paddle.distributed as dist
from fast_resumable_case import CheckpointTest
from paddle.distributed.flex_checkpoint.dcp import (
    fast_resumable,
    rank_failures,
)
from paddle.distributed.flex_checkpoint.dcp import load_state_dict as loader
from paddle.distributed.flex_checkpoint.dcp.rank_failures import (
    RankFailedError,
    failure_told,
    outcome_shared,
)
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight
from parameterized import parameterized


class Gathers:
    """Stands in for `all_gather_object`, with what the other ranks answer.

    Args:
        others (list): Their answers, the same in every gather.
        error (BaseException|None): What a gather ends with instead.
        rank (int): This one.
    """

    def __init__(self, others=(), error=None, rank=3):
        self.others = [pickle.dumps(other) for other in others]
        self.error = error
        self.rank = rank
        self.sent = []
        self.groups = []

    def __call__(self, gathered, value, group=None):
        self.groups.append(group)
        self.sent.append(pickle.dumps(value))
        if self.error is not None:
            raise self.error
        gathered.extend(map(pickle.loads, [self.sent[-1], *self.others]))

    def patched(self):
        return mock.patch.multiple(
            dist, all_gather_object=self, get_rank=lambda: self.rank
        )


class Interrupt(BaseException):
    """As KeyboardInterrupt is to the code, but not to the tests' runner."""


class TestContexts(unittest.TestCase):
    def check(self, context, error, gathers, is_shared=True):
        """A rank fails; -> what it gathers."""
        with (
            gathers.patched(),
            self.assertRaises(type(error)) as caught,
            context('a/path', 'group', is_shared),
        ):
            raise error
        self.assertIs(caught.exception, error)
        self.assertEqual(gathers.groups, ['group'] * len(gathers.sent))
        return gathers.sent

    @parameterized.expand([(failure_told,), (outcome_shared,)])
    def test_own_error_and_one_gather(self, context):
        for outcome in (
            None,
            RankFailedError('of another rank'),
            pickle.UnpicklingError('a class is forbidden'),
            ConnectionError('another rank is gone'),
        ):
            sent = self.check(context, KeyError('k'), Gathers(error=outcome))
            self.assertEqual(len(sent), 1, outcome)

    @parameterized.expand([(failure_told,), (outcome_shared,)])
    def test_nobody_is_told(self, context):
        for error, is_shared in (
            (Interrupt(), True),
            (SystemExit(), True),
            (KeyError('k'), False),
        ):
            sent = self.check(context, error, Gathers(), is_shared)
            self.assertEqual(sent, [])

    @parameterized.expand([(failure_told,), (outcome_shared,)])
    def test_interrupt_in_the_gather(self, context):
        gathers = Gathers(error=Interrupt())
        with (
            gathers.patched(),
            self.assertRaises(Interrupt),
            context('a/path', None, True),
        ):
            raise KeyError('k')

    @parameterized.expand([(failure_told,), (outcome_shared,)])
    def test_what_a_signal_raises(self, context):
        """It is meant for the caller, wherever it strikes."""

        class Alarm(Exception):
            pass

        def ring(*args):
            raise Alarm

        def load_or_ring(is_in_gather):
            gathers = Gathers()
            with (
                gathers.patched(),
                self.assertRaises(Alarm),
                context('a/path', None, True),
            ):
                if not is_in_gather:
                    ring()
                dist.all_gather_object = ring
                raise KeyError('k')
            return gathers.sent

        before = signal.signal(signal.SIGUSR1, ring)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        self.assertEqual(load_or_ring(False), [])
        load_or_ring(True)

    def test_an_answer_that_cannot_be_read(self):
        [sent] = self.check(failure_told, KeyError('k'), Gathers())
        with self.assertRaisesRegex(
            RankFailedError,
            "^nothing was restored: rank 3 failed to load 'a/path': "
            "KeyError: 'k'$",
        ):
            pickle.loads(sent)
        self.assertTrue(issubclass(RankFailedError, RuntimeError))

    def test_error_that_has_no_text(self):
        class Odd(Exception):
            def __str__(self):
                raise ValueError

        [sent] = self.check(failure_told, Odd(), Gathers())
        with self.assertRaisesRegex(RankFailedError, 'Odd'):
            pickle.loads(sent)

    def test_long_text_is_cut(self):
        [sent] = self.check(failure_told, ValueError('x' * 10**6), Gathers())
        self.assertLess(len(sent), 3000)

    def meet(self, *others):
        gathers = Gathers(others)
        with (
            gathers.patched(),
            outcome_shared('a/path', 'group', True, 'this one did'),
        ):
            pass
        self.assertEqual(gathers.sent, [pickle.dumps(None)])
        self.assertEqual(gathers.groups, ['group'])

    def test_meeting_of_ranks_that_did_not_fail(self):
        self.meet(None, None)
        with Gathers().patched(), outcome_shared('a/path', None, False):
            pass

    def test_meeting_tells_who_failed(self):
        with self.assertRaisesRegex(
            RankFailedError, '^this one did, but rank 1 failed; rank 2 failed$'
        ):
            self.meet(None, 'rank 1 failed', 'rank 2 failed')
        with self.assertRaisesRegex(
            RankFailedError, '^this one did, but 1; 2; 3; 4; and 2 more$'
        ):
            self.meet(*'123456')


class TestLoad(CheckpointTest):
    """`load_state_dict` of one rank of two; the other one is stood in for."""

    def setUp(self):
        super().setUp()
        self.target = {'a': paddle.zeros([6]), 'b': paddle.to_tensor(0.0)}
        self.save({key: value + 1 for key, value in self.target.items()})

    def load(self, others=(True,), error=None, fast=True):
        """-> the error, and what was gathered: a value, or what it raises."""
        loader.PATH_TO_CHECKPOINT_FILES.clear()
        gathers, caught = Gathers(others, error, rank=0), None
        with (
            gathers.patched(),
            mock.patch.multiple(
                dist, get_world_size=lambda: 2, barrier=lambda group: None
            ),
            mock.patch.object(loader, 'is_initialized', lambda: True),
            mock.patch.object(loader, 'load_state_dict_impl'),
        ):
            try:
                dist.load_state_dict(
                    self.target, self.path, 'group', fast_resumable_check=fast
                )
            except Exception as raised:
                caught = raised
        self.assertEqual(gathers.groups, ['group'] * len(gathers.sent))
        return caught, [self.read(sent) for sent in gathers.sent]

    def read(self, sent):
        try:
            return pickle.loads(sent)
        except RankFailedError as error:
            return f'raises {error}'

    def declines(self):
        return mock.patch.multiple(
            loader,
            check_resumable_locally_fast=lambda *args: None,
            check_resumable_locally_by_storage=lambda *args: None,
        )

    def values(self):
        return {float(v) for t in self.target.values() for v in t.flatten()}

    def remove_folder(self):
        shutil.move(self.path, f'{self.path}_moved')
        self.addCleanup(shutil.move, f'{self.path}_moved', self.path)

    def remove_metadata(self):
        os.remove(self.metadata_path)

    def copy_metadata(self):
        shutil.copy(self.metadata_path, os.path.join(self.path, '1.metadata'))

    def truncate_metadata(self):
        os.truncate(self.metadata_path, os.path.getsize(self.metadata_path) - 9)

    def set_no_tensor(self):
        self.target['b'] = 7

    def set_no_dict(self):
        self.target = [1]

    @parameterized.expand(
        [
            ('remove_folder', FileNotFoundError),
            ('remove_metadata', AssertionError),
            ('copy_metadata', AssertionError),
            ('truncate_metadata', ValueError),
            ('set_no_tensor', ValueError),
            ('set_no_dict', AttributeError),
        ]
    )
    def test_error_before_the_answer(self, damage, error_class):
        """It is the stock one, and told in the one gather of answers."""
        getattr(self, damage)()
        error, sent = self.load()
        self.assertIsInstance(error, error_class)
        [told] = sent
        self.assertIn(
            f"raises nothing was restored: rank 0 failed to load '{self.path}'",
            told,
        )
        self.assertIn(f'{type(error).__name__}: {error}', told)
        stock_error, sent = self.load(fast=False)
        self.assertEqual(sent, [])
        self.assertEqual(type(stock_error), type(error))
        self.assertEqual(str(stock_error), str(error))

    def stock_tier(self, state_dict, error, answer):
        """The stock check decides, as it stands and in the place of others."""
        self.target = state_dict
        results = []
        for fast in (True, False):
            with (
                self.declines(),
                mock.patch.object(
                    loader, 'is_sharded_state_dict', lambda *args: False
                ),
                mock.patch.object(loader, 'local_load_state_dict'),
                mock.patch.object(paddle, 'load', wraps=paddle.load) as load,
            ):
                results.append(self.load(others=(), fast=fast))
            load.assert_called_once_with(self.metadata_path)
        (own, told), (stock, sent) = results
        self.assertEqual(repr(own), repr(stock))
        if error is None:
            self.assertIsNone(own)
            self.assertEqual((told, sent), ([answer, None], [answer]))
        else:
            self.assertRegex(str(own), error)
            self.assertEqual((len(told), sent), (1, []))

    def test_what_the_stock_check_comes_to(self):
        weight, odd = (
            ShardedWeight('a', paddle.ones([6]), (6,), (6,), offset)
            for offset in ((0,), ([0],))
        )
        nowhere = paddle.ones([1])
        nowhere._clear()
        self.stock_tier({'a': weight}, None, True)
        self.stock_tier({'c': nowhere, 'a': weight}, None, True)
        self.stock_tier({'a': weight, 'b': odd}, 'unhashable', None)
        self.stock_tier({'c': nowhere, 'b': odd}, 'unhashable', None)
        # What follows the first tensor that does not fit is not looked at.
        self.stock_tier({'a': paddle.ones([7]), 'b': odd}, None, False)
        os.remove(self.data_path())
        self.stock_tier({'a': weight, 'b': odd}, None, False)

    def test_error_in_telling_of_an_answer(self):
        os.truncate(self.metadata_path, 9)
        with mock.patch.object(
            fast_resumable.logger, 'info', side_effect=OSError('no space')
        ):
            error, sent = self.load(others=())
        self.assertRegex(str(error), 'no space')
        self.assertEqual(len(sent), 1)
        self.assertRegex(sent[0], 'raises .* OSError: no space')

    def test_rank_that_is_alone(self):
        for damage, told in (
            (mock.Mock(), None),
            (self.truncate_metadata, ValueError),
            (self.remove_metadata, AssertionError),
        ):
            damage()
            loader.PATH_TO_CHECKPOINT_FILES.clear()
            gathers = Gathers()
            with gathers.patched():
                if told is None:
                    dist.load_state_dict(self.target, self.path)
                else:
                    with self.assertRaises(told):
                        dist.load_state_dict(self.target, self.path)
            self.assertEqual(gathers.sent, [])

    def test_local_restore(self):
        self.assertEqual(self.load(others=()), (None, [True, None]))
        self.assertEqual(self.load(others=(), fast=False), (None, [True]))
        self.assertEqual(self.values(), {1.0})

    def test_error_in_the_restore(self):
        with mock.patch.object(
            loader, 'local_load_state_dict', side_effect=OSError(5, 'no disk')
        ):
            error, sent = self.load(others=())
            self.assertEqual(
                sent,
                [
                    True,
                    f"rank 0 failed to load '{self.path}': "
                    'OSError: [Errno 5] no disk',
                ],
            )
            stock_error, sent = self.load(fast=False)
            self.assertEqual(sent, [True])
        self.assertIs(stock_error, error)

    def test_error_of_the_metadata_for_a_reshard(self):
        self.target = {'a': paddle.ones([7])}
        with mock.patch.object(paddle, 'load', side_effect=OSError(5, 'no')):
            error, sent = self.load(others=())
        self.assertIsInstance(error, OSError)
        self.assertEqual(sent[0], False)
        self.assertRegex(sent[1], '^rank 0 failed .* OSError: .Errno 5. no$')

    def test_reshard(self):
        self.target = {'a': paddle.ones([7])}
        with mock.patch.object(
            loader, 'is_sharded_state_dict', lambda *args: False
        ):
            self.assertEqual(self.load(others=()), (None, [False, None]))
            self.assertEqual(self.load(others=(), fast=False), (None, [False]))

    def tiers(self):
        """The checks that a rank can be in; none of them knows of others."""
        by_fast_check = mock.MagicMock()
        by_storage = mock.patch.object(
            loader, 'check_resumable_locally_fast', lambda *args: None
        )
        return (by_fast_check, by_storage, self.declines())

    def test_failure_of_another_rank(self):
        failure = rank_failures._Failure('rank 1 failed')
        for tier in self.tiers():
            with tier:
                error, sent = self.load([failure])
            self.assertIsInstance(error, RankFailedError)
            self.assertEqual(str(error), 'rank 1 failed')
            self.assertEqual(sent, [True])
            self.assertEqual(self.values(), {0.0})

    def test_error_of_a_gather_leads_to_no_other(self):
        gather_error = ConnectionError('another rank is gone')
        for tier in self.tiers():
            with tier:
                error, sent = self.load(error=gather_error)
            self.assertIs(error, gather_error)
            self.assertEqual(sent, [True])

    def test_another_rank_fails_late(self):
        # A text is true as an answer, and a failure as an outcome.
        error, _ = self.load(others=('rank 1 failed',))
        self.assertIsInstance(error, RankFailedError)
        self.assertEqual(
            str(error), 'this rank restored its tensors, but rank 1 failed'
        )
        self.assertEqual(self.values(), {1.0})


if __name__ == '__main__':
    unittest.main()
