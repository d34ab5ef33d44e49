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

"""Damage to safetensors files: to the header's numbers, names, text, length."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

_LENGTH_BYTES = 8

# In the place of a number.
NUMBERS = (
    '-1', '-0', '0', '1', '2', '3', '4', '8', '1.0', '1e1', '01', '1e400',
    'null', 'true', '"3"', '[]', '[1]', '{}', '2147483648', '4294967296',
    '9223372036854775807', '9223372036854775808', '18446744073709551615',
    '18446744073709551616', 'NaN', 'Infinity',
)  # fmt: skip

DTYPES = (
    'BOOL', 'I8', 'I16', 'I32', 'I64', 'U8', 'U16', 'U32', 'U64', 'F16',
    'BF16', 'F32', 'F64', 'C64', 'F8_E4M3', 'F8_E5M2', 'F8_E8M0', 'F4',
    'F6_E2M3', 'f32', '', 'F128', 'C128',
)  # fmt: skip

TOKENS = (
    '{', '}', '[', ']', ',', ':', '"', '\\', '""', '\\u0041', '\\ud800',
    '\xff', '\0', ' ', '\n', '"__metadata__":{},', '"__metadata__":{"a":1},',
    '"dtype":"U8",', '"shape":[],', '"extra":null,',
)  # fmt: skip


class _Text(str):
    """Stands in a header as it is, whatever it is."""

    __slots__ = ()


def _dump(value):
    """JSON of nested lists of pairs, so that keys may come twice."""
    if isinstance(value, _Text):
        return str(value)
    if isinstance(value, _Pairs):
        items = (f'{json.dumps(k)}:{_dump(item)}' for k, item in value)
        return '{' + ','.join(items) + '}'
    if isinstance(value, list):
        return '[' + ','.join(map(_dump, value)) + ']'
    return json.dumps(value)


class _Pairs(list):
    """The items of a JSON object, in order."""

    __slots__ = ()

    def get(self, key):
        return next((item for name, item in self if name == key), None)

    def put(self, key, value):
        self[:] = [(name, value if name == key else v) for name, v in self]


def _tensors(header):
    return [
        (index, entry)
        for index, (name, entry) in enumerate(header)
        if name != '__metadata__' and isinstance(entry, _Pairs)
    ]


def _any_tensor(rng, header):
    tensors = _tensors(header)
    return rng.choice(tensors) if tensors else (0, _Pairs())


def _any_numbers(rng, entry):
    found = entry.get(rng.choice(('shape', 'data_offsets')))
    return found if isinstance(found, list) and found else [0]


def lie_about_number(rng, header):
    numbers = _any_numbers(rng, _any_tensor(rng, header)[1])
    at = rng.randrange(len(numbers))
    if isinstance(numbers[at], int) and rng.random() < 0.5:
        numbers[at] += rng.choice((-4, -2, -1, 1, 2, 4))
    else:
        numbers[at] = _Text(rng.choice(NUMBERS))


def change_shape(rng, header):
    shape = _any_tensor(rng, header)[1].get('shape')
    if isinstance(shape, list):
        kind = rng.randrange(4)
        if kind == 0:
            shape.append(rng.choice((0, 1, 2, 2**32, 2**63)))
        elif kind == 1:
            shape.reverse()
        elif kind == 2:
            del shape[:1]
        else:
            shape[:] = [2**32, 2**32, *shape]  # overflows 64 bits


def swap_offsets(rng, header):
    """Two tensors in each other's places, or both in one."""
    first, second = (
        _any_tensor(rng, header)[1],
        _any_tensor(rng, header)[1],
    )
    offsets = first.get('data_offsets'), second.get('data_offsets')
    first.put('data_offsets', offsets[1])
    if rng.random() < 0.5:
        second.put('data_offsets', offsets[0])


def shift_offsets(rng, header):
    """A gap or an overlap, with everything behind it moved along."""
    at, _ = _any_tensor(rng, header)
    shift = rng.choice((-4, -1, 1, 4))
    for index, entry in _tensors(header):
        offsets = entry.get('data_offsets')
        if index >= at and isinstance(offsets, list):
            offsets[:] = [
                number + shift if isinstance(number, int) else number
                for number in offsets
            ]


def change_dtype(rng, header):
    _any_tensor(rng, header)[1].put('dtype', rng.choice(DTYPES))


def repeat_key(rng, header):
    if header:
        pair = rng.choice(header)
        header.insert(rng.randrange(len(header) + 1), pair)
        entry = _any_tensor(rng, header)[1]
        if entry and rng.random() < 0.3:
            entry.append(rng.choice(entry))


def rename_key(rng, header):
    if header:
        at = rng.randrange(len(header))
        name = rng.choice(('__metadata__', '', '\u00e9', 'w', header[0][0]))
        header[at] = name, header[at][1]


def reorder(rng, header):
    rng.shuffle(header)
    rng.shuffle(_any_tensor(rng, header)[1])


def remove_item(rng, header):
    entry = rng.choice((header, _any_tensor(rng, header)[1]))
    if entry:
        del entry[rng.randrange(len(entry))]


_KINDS = (
    lie_about_number, lie_about_number, lie_about_number, change_shape,
    swap_offsets, shift_offsets, change_dtype, change_dtype, repeat_key,
    rename_key, reorder, remove_item,
)  # fmt: skip


def parse(data: bytes) -> tuple[_Pairs, bytes]:
    """The header and what follows it, of a file that is whole."""
    length = int.from_bytes(data[:_LENGTH_BYTES], 'little')
    end = _LENGTH_BYTES + length
    header = json.loads(data[_LENGTH_BYTES:end], object_pairs_hook=_Pairs)
    return header, data[end:]


def _damage_text(rng, text):
    at = rng.randrange(len(text) + 1)
    kind = rng.random()
    if kind < 0.4:
        return text[:at] + rng.choice(TOKENS) + text[at:]
    if kind < 0.6:
        return text[:at] + text[at + 1 :]
    if kind < 0.7:
        return text[:at]
    return text + ' ' * rng.choice((1, 7, 8, 300))


def mutate(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """A damaged file.

    Args:
        rng(random.Random): The source of random numbers.
        data(bytes): The file to damage.
        other(bytes): One to take parts from.

    Returns:
        bytes: The file after one or more kinds of damage; one in fifty has
        none.
    """
    header, body = parse(data)
    if rng.random() < 0.02:
        return data
    kind = rng.random()
    if kind < 0.75:
        for change in rng.choices(_KINDS, k=rng.choice((1, 1, 2, 3))):
            change(rng, header)
    text = _dump(header)
    if 0.7 < kind < 0.85:
        text = _damage_text(rng, text)
    encoded = text.encode('utf-8', 'surrogatepass')
    if rng.random() < 0.03:
        encoded = encoded.replace(b'"', b'\xc3', 1)
    length = len(encoded)
    if rng.random() < 0.08:
        length = rng.choice(
            (0, 1, length - 1, length + 1, length + len(body), 10**8,
             10**8 + 1, 2**32, 2**63, 2**64 - 1)
        )  # fmt: skip
    if kind > 0.95:
        body = parse(other)[1]
    damaged = bytearray((length % 2**64).to_bytes(_LENGTH_BYTES, 'little'))
    damaged += encoded + body
    if 0.85 < kind < 0.95:
        at = rng.randrange(min(len(damaged), len(encoded) + 16))
        change = rng.randrange(4)
        if change == 0:
            damaged[at] ^= 1 << rng.randrange(8)
        elif change == 1:
            del damaged[at:]
        elif change == 2:
            del damaged[len(damaged) - rng.randrange(1, 9) :]
        else:
            damaged += bytes(rng.randrange(1, 9))
    return bytes(damaged)
