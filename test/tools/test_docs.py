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

"""Commands and paths that the documentation prints are there and work."""

import contextlib
import io
import re
import shlex
import unittest
from pathlib import Path

import series
from fork import cli, wheel
from fork.project import Project
from parameterized import parameterized
from wiring.function import Function
from wiring.module import Module
from wiring.tree import Tree

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    'README.md',
    'CONTRIBUTING.md',
    'CHANGELOG.md',
    'docs/hardening.md',
    'docs/loader.md',
    'docs/unpickler.md',
)

# Words in capitals stand for what a reader puts there.
PLACEHOLDER = re.compile(r'\b[A-Z_]{3,}\b(?:/\S*)?')
# What the commands make, and what belongs to Paddle's side.
MADE = (
    'paddle/',
    'build/',
    '.venv/',
    'dist/',
    '.dist-info',
    'paddle_fork.json',
)
# Programs that are only looked at for their options here.
PROGRAMS = ('cmake', 'ctest', 'git', 'pip')


def page(name):
    return (ROOT / name).read_text(encoding='utf-8')


def blocks(text):
    """Language and content of each fenced block, without its indentation."""
    for indent, language, content in re.findall(
        r'^( *)```(\w+)\n(.*?)^ *```$', text, re.MULTILINE | re.DOTALL
    ):
        lines = [line.removeprefix(indent) for line in content.splitlines()]
        yield language, '\n'.join(lines)


def commands():
    """Page and words of every command in a fenced block."""
    for name in PAGES:
        for language, content in blocks(page(name)):
            if language != 'bash':
                continue
            for line in content.splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    yield name, words


def code_spans(text):
    """What stands between single backquotes, outside fenced blocks."""
    text = re.sub(r'^ *```.*?^ *```$', '', text, flags=re.M | re.S)
    return re.findall(r'`([^`\n]+)`', text)


def parse(parser, words):
    """Parses arguments as the tool would; -> the messages if it refuses."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            _, more = parser.parse_known_args(words)
        except SystemExit:
            return errors.getvalue()
    return f'unknown {more}' if more and words[0] != 'test' else ''


class TestCommands(unittest.TestCase):
    def test_every_command_is_known(self):
        """Each is parsed here or names a program and files that exist."""
        seen = 0
        for name, words in commands():
            with self.subTest(f'{name}: {shlex.join(words)}'):
                self.check(words)
                seen += 1
        self.assertGreater(seen, 15)

    def check(self, words):
        if words[0] == 'export':  # export "$(python3 ... build)"
            words = shlex.split(words[1].removeprefix('$(').removesuffix(')'))
        program, *rest = words
        if rest[:2] == ['-m', 'pip']:
            program, rest = 'pip', rest[2:]
        if program in ('python', 'python3', '.venv/bin/python'):
            self.check_script(*rest)
        elif program in PROGRAMS:
            self.check_program(program, rest)
        else:
            self.assertTrue((ROOT / program).is_file(), program)

    def check_script(self, script, *rest):
        if script == 'example.py':  # the reader's own, from the page
            return
        self.assertTrue((ROOT / script).exists(), script)
        if script == 'tools/paddle_fork.py':
            self.assertEqual(parse(cli.build_parser(), list(rest)), '')
        elif script == 'setup.py':
            self.assertEqual(rest[0], 'bdist_wheel')
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                self.assertRaises(SystemExit, wheel.main, [*rest, '--help'])
            self.assertIn('--dist-dir', printed.getvalue())
        elif script == 'tools/wiring':
            text = (ROOT / script / '__main__.py').read_text()
            self.assertIn(f"add_parser('{rest[0]}')", text)
        else:
            self.assertTrue((ROOT / script).is_file(), script)

    def check_program(self, program, rest):
        text = ' '.join(rest)
        if program == 'pip' and 'paddlepaddle' in text:
            self.assertIn(wheel.pinned_paddle(Project()), rest)
        if program == 'pip' and '-r' in rest:
            self.assertTrue((ROOT / rest[rest.index('-r') + 1]).is_file())
        if program == 'cmake':
            lists = (ROOT / 'CMakeLists.txt').read_text()
            for option in re.findall(r'-D(\w+)=', text):
                self.assertRegex(lists + 'Python3_EXECUTABLE', option)

    def test_patches_are_found_from_the_checkout(self):
        """`git -C` takes a relative path from there, `export` from here."""
        [output] = {
            words[words.index('-o') + 1]
            for _, words in commands()
            if 'export' in words and '-o' in words
        }
        [patches] = {w[-1] for _, w in commands() if w[0] == 'git'}
        self.assertEqual(patches, f'{output}/*.patch')
        self.assertRegex(output, r'\A\$PWD/')

    def test_every_command_of_the_tool_is_described(self):
        text = page('README.md')
        [group] = [
            action
            for action in cli.build_parser()._actions
            if hasattr(action, 'choices') and isinstance(action.choices, dict)
        ]
        for command in group.choices:
            self.assertRegex(text, rf'\| `{command}\b', command)


class TestPaths(unittest.TestCase):
    @parameterized.expand([(name,) for name in PAGES])
    def test_paths_in_code_exist(self, name):
        missing = [
            span
            for span in code_spans(page(name))
            if re.fullmatch(r'[\w.\-*]+(/[\w.\-*]*)+|\w+\.(py|md|txt)', span)
            and not span.startswith(MADE)
            and not PLACEHOLDER.search(span)
            and not list(ROOT.glob(span.rstrip('/')))
        ]
        self.assertEqual(missing, [])

    @parameterized.expand([(name,) for name in PAGES])
    def test_links_lead_somewhere(self, name):
        for target in re.findall(r'\]\(([^)\s]+)\)', page(name)):
            if not target.startswith('https://'):
                path = (ROOT / name).parent / target.partition('#')[0]
                self.assertTrue(path.exists(), target)

    def test_python_blocks_compile(self):
        for name in PAGES:
            for language, content in blocks(page(name)):
                if language == 'python':
                    compile(content, name, 'exec')


class TestWords(unittest.TestCase):
    def test_verbs_are_those_of_the_wiring(self):
        kinds = {'tree': Tree, 'module': Module, 'function': Function}
        rows = re.findall(
            r'^\| (`\w+`(?:, `\w+`)*) \| ([\w, ]+) \|',
            page('CONTRIBUTING.md'),
            re.MULTILINE,
        )
        named = {
            (kind, verb)
            for verbs, owners in rows
            for verb in re.findall(r'\w+', verbs)
            for kind in owners.split(', ')
        }
        for kind, verb in named:
            self.assertTrue(hasattr(kinds[kind], verb), f'{kind}.{verb}')
        of_function = {
            name for name in vars(Function) if not name.startswith('_')
        }
        self.assertEqual(
            of_function, {verb for kind, verb in named if kind == 'function'}
        )

    def test_names_of_the_loader(self):
        source = (ROOT / 'python/paddle/framework/io_utils.py').read_text()
        for span in code_spans(page('docs/loader.md')):
            if re.fullmatch(r'_\w+', span):
                self.assertIn(span, source)

    def test_limits_of_the_loader(self):
        """The figures are those of the constants."""
        source = (ROOT / 'python/paddle/framework/io_utils.py').read_text()
        text = page('docs/loader.md')
        for constant, value, words in (
            ('_MIN_PARALLEL_BYTES', '4 * 1024 * 1024', 'At least 4 MiB in'),
            ('_MIN_PARALLEL_PAYLOAD_BYTES', '256 * 1024', '256 KiB each'),
            ('_PIECE_BYTES', '16 * 1024 * 1024', 'of up to 16 MiB'),
            ('_MAX_VIEWS', '1024', 'at most 1,024 buffers'),
            ('_MAX_GAP_BYTES', '4096', '4 KiB for\neach read in flight'),
            (
                '_MIN_HUGE_PAGE_PAYLOAD_BYTES',
                '4 * 1024 * 1024',
                'payloads of 4 MiB and more',
            ),
        ):
            self.assertIn(f'\n{constant} = {value}\n', source)
            self.assertIn(words, text, constant)

    def test_version_of_the_wheel(self):
        self.assertIn(f'+{wheel.LABEL}.{series.VERSION}`', page('README.md'))
        self.assertIn(f'`{wheel.NOTE_NAME}`', page('README.md'))
        self.assertIn(f'`{wheel.BASE_VARIABLE}=FILE`', page('README.md'))


if __name__ == '__main__':
    unittest.main()
