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

"""The patched wheel, made of small invented wheels."""

import base64
import csv
import email
import hashlib
import io
import json
import subprocess
import sys
import unittest
import zipfile
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from unittest import mock

from fork import wheel
from fork.console import ForkError
from invented_case import OVERLAY, TREE, InventedCase, put
from parameterized import parameterized

ROOT = Path(__file__).resolve().parents[2]

METADATA = """\
Metadata-Version: 2.2
Name: paddlepaddle
Version: {version}
Summary: Invented ☕
Requires-Dist: numpy
Requires-Dist: opt_einsum==3.3.0

Version: of nothing; the text below the headers stays.
"""


class WheelCase(InventedCase):
    def make_base(self, tree=TREE, version='9.9.1', tags='', build='', kind=''):
        """Packs a base wheel; -> its path, under the file name's tags."""
        name = f'paddlepaddle{kind}-{version}'
        root = self.folder / 'base'
        put(tree, root)
        put(
            {
                f'{name}.dist-info/METADATA': METADATA.format(version=version),
                f'{name}.dist-info/WHEEL': (
                    'Wheel-Version: 1.0\nGenerator: invented\n'
                    'Root-Is-Purelib: false\nTag: cp39-cp39-linux_x86_64\n'
                ),
                f'{name}.data/scripts/paddle': '#!python\n',
            },
            root,
        )
        script = root / 'scripts' / 'run.sh'
        script.parent.mkdir()
        script.write_text('#!/bin/sh\n')
        script.chmod(0o755)
        subprocess.run(
            [sys.executable, '-m', 'wheel', 'pack', '-d', self.folder, root],
            check=True,
            capture_output=True,
        )
        [packed] = self.folder.glob('paddlepaddle*.whl')
        tags = tags or 'cp39-cp39-manylinux1_x86_64'
        parts = [name, build, tags] if build else [name, tags]
        return packed.rename(self.folder / f'{"-".join(parts)}.whl')

    def make_wheel(self, base):
        self.environ(PADDLE_BASE_WHEEL=str(base))
        destination = self.folder / 'dist'
        made = wheel.make_wheel(self.project, destination)
        self.assertEqual(list(destination.iterdir()), [made])
        return made

    def assert_refused(self, base):
        """No wheel is made of a base; -> the message."""
        with self.assertRaises(ForkError) as caught:
            self.make_wheel(base)
        self.assertFalse((self.folder / 'dist').exists())
        return str(caught.exception)


class TestWheel(WheelCase):
    @parameterized.expand(
        [
            ('plain', '9.9.1', 'fastload.4.5.6', '', 'cp39-cp39-any'),
            ('local', '9.9.1+cu1', 'cu1.fastload.4.5.6', '', 'py3-none-any'),
            ('build', '9.9.1', 'fastload.4.5.6', '7', 'cp39-cp39-any'),
            ('tags', '9.9.1', 'fastload.4.5.6', '', 'py2.py3-none-l_x.m_x'),
        ]
    )
    def test_name_and_tags(self, _, version, local, build, tags):
        made = self.make_wheel(self.make_base(TREE, version, tags, build))
        public = version.partition('+')[0]
        parts = [f'paddlepaddle-{public}+{local}', build, tags]
        self.assertEqual(made.name, f'{"-".join(filter(None, parts))}.whl')
        with zipfile.ZipFile(made) as archive:
            [name] = [n for n in archive.namelist() if n.endswith('/WHEEL')]
            text = archive.read(name).decode()
        self.assertTrue(name.startswith(f'{parts[0]}.dist-info/'), name)
        self.assertEqual(
            email.message_from_string(text).get_all('Tag'),
            {
                'cp39-cp39-any': ['cp39-cp39-any'],
                'py3-none-any': ['py3-none-any'],
                'py2.py3-none-l_x.m_x': [
                    *('py2-none-l_x', 'py2-none-m_x'),
                    *('py3-none-l_x', 'py3-none-m_x'),
                ],
            }[tags],
        )

    def test_gpu(self):
        made = self.make_wheel(self.make_base(kind='_gpu'))
        name = 'paddlepaddle_gpu-9.9.1+fastload.4.5.6'
        self.assertTrue(made.name.startswith(f'{name}-cp39'), made)
        with zipfile.ZipFile(made) as archive:
            folders = {n.partition('/')[0] for n in archive.namelist()}
        self.assertEqual(
            folders, {'paddle', 'scripts', f'{name}.data', f'{name}.dist-info'}
        )

    def test_content(self):
        base = self.make_base()
        with zipfile.ZipFile(base) as archive:
            before = {n: archive.read(n) for n in archive.namelist()}
        with zipfile.ZipFile(self.make_wheel(base)) as archive:
            after = {n: archive.read(n) for n in archive.namelist()}
            mode = archive.getinfo('scripts/run.sh').external_attr >> 16
        version = '9.9.1+fastload.4.5.6'
        info = f'paddlepaddle-{version}.dist-info'
        self.assertEqual(mode & 0o777, 0o755)
        self.assertEqual(
            after.keys() - {f'{info}/{wheel.NOTE_NAME}'},
            {n.replace('-9.9.1.', f'-{version}.') for n in before}
            | {'paddle/framework/pot.py'},
        )
        changed = {
            n
            for n in before
            if n.startswith('paddle/') and before[n] != after[n]
        }
        self.assertEqual(changed, {'paddle/framework/io.py'})
        self.assertIn(b'_seen(os.stat, path)', after['paddle/framework/io.py'])
        self.assertEqual(
            after['paddle/framework/pot.py'].decode(),
            OVERLAY['framework/pot.py'],
        )
        ours = after[f'{info}/METADATA'].decode()
        expected = METADATA.format(version=version)
        # The order of the headers is free.
        self.assertEqual(
            sorted(ours.partition('\n\n')[0].splitlines()),
            sorted(expected.partition('\n\n')[0].splitlines()),
        )
        self.assertEqual(
            ours.partition('\n\n')[2], expected.partition('\n\n')[2]
        )

    def test_record_has_every_file(self):
        with zipfile.ZipFile(self.make_wheel(self.make_base())) as archive:
            names = set(archive.namelist())
            [record] = [n for n in names if n.endswith('/RECORD')]
            rows = list(csv.reader(io.StringIO(archive.read(record).decode())))
            for name, digest, size in rows:
                if name != record:
                    data = archive.read(name)
                    algorithm, _, text = digest.partition('=')
                    found = hashlib.new(algorithm, data).digest()
                    self.assertEqual(wheel_base64(found), text, name)
                    self.assertEqual(str(len(data)), size, name)
        self.assertEqual({row[0] for row in rows}, names)

    def test_note(self):
        base = self.make_base()
        with zipfile.ZipFile(self.make_wheel(base)) as archive:
            [name] = [n for n in archive.namelist() if wheel.NOTE_NAME in n]
            note = json.loads(archive.read(name))
        self.assertEqual(note['series_version'], '4.5.6')
        self.assertEqual(note['patches'], {'see': 'applied', 'pour': 'applied'})
        self.assertEqual(
            note['base'],
            {
                'wheel': base.name,
                'sha256': hashlib.sha256(base.read_bytes()).hexdigest(),
            },
        )

    def test_pinned_base_is_that_of_the_set_up(self):
        put(
            {'tools/requirements.txt': '# x\nnumpy==2\npaddlepaddle==9.9.1\n'},
            self.project.root,
        )
        self.assertEqual(
            wheel.pinned_paddle(self.project), 'paddlepaddle==9.9.1'
        )


def wheel_base64(digest):
    """As RECORD has it: URL-safe, without padding."""
    return base64.urlsafe_b64encode(digest).decode().rstrip('=')


class TestRefusals(WheelCase):
    def test_a_base_that_does_not_fit(self):
        io = TREE['paddle/framework/io.py'].replace('os.stat', 'os.lstat')
        base = self.make_base({**TREE, 'paddle/framework/io.py': io})
        message = self.assert_refused(base)
        self.assertIn(base.name, message)
        self.assertIn('see: failed', message)
        self.assertIn(
            'framework/io.py: in load: expected 1 call of os.stat(path)',
            message,
        )

    def test_a_wheel_of_something_else(self):
        message = self.assert_refused(self.make_base({'other/x.py': ''}))
        self.assertIn('expected a Paddle Python tree', message)

    def test_a_wheel_that_has_the_series(self):
        made = self.make_wheel(self.make_base())
        again = made.rename(self.folder / made.name)
        (self.folder / 'dist').rmdir()
        message = self.assert_refused(again)
        self.assertIn('see: already applied', message)

    @parameterized.expand(
        [
            ('none', PackageNotFoundError('wheel'), 'none'),
            ('old', ['0.47.9'], '0.47.9'),
        ]
    )
    def test_the_package_wheel(self, _, versions, found):
        with mock.patch.object(metadata, 'version', side_effect=versions):
            message = self.assert_refused(self.folder / 'none.whl')
        self.assertIn(f'but found {found}: ', message)

    @parameterized.expand(
        [
            ('nothing', 'none.whl', None),
            ('no_wheel', 'paddle.zip', b''),
            ('short_name', 'paddlepaddle-3.3.1.whl', b''),
        ]
    )
    def test_paths_that_are_no_wheel(self, _, name, content):
        path = self.folder / name
        if content is not None:
            path.write_bytes(content)
        self.assertIn(str(path), self.assert_refused(path))

    def test_a_relative_path_is_shown_in_full(self):
        self.assertIn(str(Path.cwd() / 'no.whl'), self.assert_refused('no.whl'))

    def assert_refused_before_unpacking(self, base):
        self.enter(mock.patch.object(wheel, 'run_wheel', side_effect=self.fail))
        message = self.assert_refused(base)
        self.assertTrue(message.startswith(f'{base}: expected a wheel'))
        self.assertNotIn('\n', message)

    def test_a_damaged_wheel(self):
        base = self.make_base()
        base.write_bytes(base.read_bytes()[:-40])
        self.assert_refused_before_unpacking(base)

    def test_an_archive_of_something_else(self):
        base = self.folder / 'paddlepaddle-9.9.1-py3-none-any.whl'
        with zipfile.ZipFile(base, 'w') as archive:
            archive.writestr('paddle/__init__.py', '')
        self.assert_refused_before_unpacking(base)

    def test_a_wheel_with_a_damaged_file(self):
        base = self.make_base()
        data = base.read_bytes()
        at = data.index(b'paddle/framework/io.py') + 30
        base.write_bytes(data[:at] + bytes(9) + data[at + 9 :])
        self.assertRegex(
            self.assert_refused(base),
            rf'\A`wheel unpack` failed for {base}: .*framework/io\.py.*\Z',
        )

    def test_a_destination_that_is_a_file(self):
        self.environ(PADDLE_BASE_WHEEL=str(self.make_base()))
        self.enter(mock.patch.object(wheel, 'run_wheel', side_effect=self.fail))
        path = self.folder / 'file'
        path.touch()
        with self.assertRaisesRegex(ForkError, 'file: expected a directory'):
            wheel.make_wheel(self.project, path)


class TestSetup(WheelCase):
    """setup.py as it is started, with the real series."""

    def run_setup(self, *args):
        return subprocess.run(
            [sys.executable, ROOT / 'setup.py', *args],
            cwd=self.folder,
            capture_output=True,
            text=True,
        )

    def test_refusal(self):
        self.environ(PADDLE_BASE_WHEEL=str(self.make_base()))
        done = self.run_setup('bdist_wheel', '--dist-dir', 'dist')
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn('load_num_workers: failed', done.stderr)
        self.assertIn('framework/io.py: in _parse_load_config', done.stderr)

    def test_other_commands(self):
        for args in (['install'], ['sdist'], []):
            self.assertEqual(self.run_setup(*args).returncode, 2, args)

    def test_the_backend_is_found_as_pip_finds_it(self):
        hooks = 'import fork.wheel as w; w.build_wheel, w.build_sdist'
        text = (ROOT / 'pyproject.toml').read_text()
        self.assertIn('build-backend = "fork.wheel"\n', text)
        self.assertIn('backend-path = ["tools"]\n', text)
        subprocess.run(
            [sys.executable, '-c', hooks], cwd=ROOT / 'tools', check=True
        )


if __name__ == '__main__':
    unittest.main()
