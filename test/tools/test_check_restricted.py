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

"""num_workers on a tree that unpickles through a restricted unpickler.

The tree is invented, with a file really loaded from it, in a process of its
own: what the restriction forbids is never called, in the loader as in both
readers, whichever way a file is read.
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from textwrap import dedent

import wiring
from fork.environment import clean_environ
from invented_case import put
from parameterized import parameterized
from series.load_num_workers import load_num_workers
from test_series import IO, IO_UTILS

OVERLAY = Path(__file__).resolve().parents[2] / 'python' / 'paddle'
DCP = 'distributed/flex_checkpoint/dcp'

# The names are those of Paddle trees that have one; so is where it stands.
RESTRICTED = '''\
import pickle

attempts = []


class RestrictedUnpickler(pickle.Unpickler):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        attempts.append('buffers' in options)

    def find_class(self, module, name):
        if module.partition('.')[0] in ('numpy', 'paddle'):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f'{module}.{name} is forbidden')


def safe_load_pickle(f, encoding='ASCII'):
    return RestrictedUnpickler(f, encoding=encoding).load()
'''

METADATA = '''\
from dataclasses import dataclass


@dataclass
class LocalTensorMetadata:
    local_shape: tuple


@dataclass(frozen=True)
class LocalTensorIndex:
    tensor_key: str


@dataclass
class Metadata:
    state_dict_metadata: dict
    storage_metadata: dict
    flat_mapping: dict
'''

TREE = {
    '__init__.py': 'from .framework.io import load\n',
    'framework/__init__.py': '',
    'framework/restricted_unpickler.py': RESTRICTED,
    'framework/io.py': IO.replace(
        'from .restricted import',
        'from types import SimpleNamespace\nfrom .restricted_unpickler import',
    )
    .replace('pickle.load(f', 'safe_load_pickle(f')
    .replace(
        'inner_config = Config(configs, supported_configs)',
        'assert set(configs) <= set(supported_configs)\n'
        '    inner_config = SimpleNamespace(return_numpy=True)',
    ),
    'framework/io_utils.py': IO_UTILS.replace(
        'import os\n', 'import logging\nimport os\n'
    ).replace('\n\n\n', '\n\n_logger = logging.getLogger(__name__)\n\n\n', 1),
    'distributed/__init__.py': '',
    'distributed/flex_checkpoint/__init__.py': '',
    f'{DCP}/__init__.py': '',
    f'{DCP}/metadata.py': METADATA,
}

PROBE = dedent('''\
    import os, pickle, sys
    import numpy as np
    import paddle
    from paddle.distributed.flex_checkpoint.dcp import metadata as m
    from paddle.distributed.flex_checkpoint.dcp.distcp_reader import (
        scan_tensor_shapes,
    )
    from paddle.distributed.flex_checkpoint.dcp.metadata_reader import (
        load_state_dict_metadata,
    )
    from paddle.framework.restricted_unpickler import attempts

    CALLED = os.path.abspath('called')

    class Forbidden:
        def __reduce__(self):
            return os.mkdir, (CALLED,)

    def saved(value, protocol=4):
        with open('file', 'wb') as f:
            pickle.dump(value, f, protocol)
        return 'file'

    def outcome(function, *args, **options):
        """What came of a call, and whether the restriction was broken."""
        try:
            result = function(*args, **options)
        except Exception as error:
            result = f'{type(error).__name__}: {error}'
        if os.path.exists(CALLED):
            sys.exit('the forbidden function was called')
        return result

    def tensors(count=2):
        return {str(i): np.full(1 << 20, i, 'f4') for i in range(count)}

    def metadata(*more):
        shards = {'a': [m.LocalTensorMetadata((2,)), *more]}
        return m.Metadata(shards, {m.LocalTensorIndex('a'): 'f'}, {})

    def expect(found, expected):
        assert found == expected, f'expected {expected!r}, found {found!r}'

    def expect_in(text, found):
        assert text in str(found), f'expected {text!r}, found {found!r}'
    ''')


@wiring.patch(
    kind='permanent',
    checked='2026-11-29',
    since='3.3.0',
    mark=(f'{DCP}/distcp_reader.py', 'scan_tensor_shapes'),
)
def readers(tree):
    """dcp: both readers alone, without what they are for"""
    for name in 'compact_pickle', 'distcp_reader', 'metadata_reader':
        tree.new(f'{DCP}/{name}.py', why='to be tested')


class TestRestricted(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.root = Path(folder.name)
        put(TREE, cls.root / 'paddle')
        plan = wiring.plan(
            cls.root,
            OVERLAY,
            [load_num_workers, readers],
            wiring.Versions({}),
        )
        assert plan.ok, plan.report()
        plan.write()

    def run_probe(self, text):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, '-c', PROBE + dedent(text)],
                cwd=folder,
                env=clean_environ(
                    PYTHONPATH=str(self.root), PYTHONDONTWRITEBYTECODE='1'
                ),
                capture_output=True,
                text=True,
            )
        self.assertEqual(done.returncode, 0, done.stderr)

    @unittest.skipUnless(
        sys.implementation.name == 'cpython' and hasattr(os, 'preadv'),
        'all loads are serial here',
    )
    def test_parallel_load_goes_through_it(self):
        self.run_probe('''
            path = saved(tensors())
            loaded = paddle.load(path, num_workers=4)
            expect(sorted(loaded), ['0', '1'])
            assert all(np.all(loaded[key] == int(key)) for key in loaded)
            expect(attempts, [True])
            ''')

    @parameterized.expand(
        [(f'{p}_{place}', p, place) for p in (4, 5) for place in (0, 1, 2)]
    )
    def test_load(self, _, protocol, place):
        """Before, between and after the payloads."""
        self.run_probe(f'''
            items = [*tensors().items()]
            items.insert({place}, ('bad', Forbidden()))
            path = saved(dict(items), {protocol})
            for num_workers in 1, 4:
                del attempts[:]
                expect_in(
                    'UnpicklingError: posix.mkdir is forbidden',
                    outcome(paddle.load, path, num_workers=num_workers),
                )
            expect(attempts[-1], False)  # the serial load has the last word
            ''')

    def test_scan(self):
        self.run_probe('''
            for value in (
                {'bad': Forbidden()},
                {**tensors(), 'bad': Forbidden()},
                {'bad': [Forbidden()], **tensors()},
            ):
                found = outcome(scan_tensor_shapes, saved(value))
                expect_in('DistcpFormatError', found)
                expect_in('posix.mkdir', found)
            shapes = scan_tensor_shapes(saved(tensors()))
            expect(shapes, {'0': (1 << 20,), '1': (1 << 20,)})
            ''')

    def test_metadata(self):
        self.run_probe('''
            path = saved(metadata())
            expect(len(load_state_dict_metadata(path)['a']), 1)
            expect(attempts, [])  # a part of the file was enough

            path = saved(metadata(Forbidden()))
            expect_in(
                'UnpicklingError: posix.mkdir is forbidden',
                outcome(load_state_dict_metadata, path),
            )
            expect(attempts, [False])
            found = outcome(
                load_state_dict_metadata, path, allow_full_load=False
            )
            expect(found, None)
            ''')


if __name__ == '__main__':
    unittest.main()
