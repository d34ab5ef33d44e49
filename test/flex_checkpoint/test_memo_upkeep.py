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

"""The check by storage, with its memo kept up after every single entry."""

import collections
import io
import pickle
import pickletools
import tracemalloc
import unittest
from unittest import mock

import test_fast_resumable_storage as plain
from fast_resumable_case import shard
from paddle.distributed.flex_checkpoint.dcp import memo_upkeep
from paddle.distributed.flex_checkpoint.dcp.metadata import (
    Metadata,
)
from parameterized import parameterized

FILE = '0_0.distcp'


def framed(content):
    return pickle.FRAME + len(content).to_bytes(8, 'little') + content


def stream_of(*contents, protocol=4):
    return b'\x80%c' % protocol + b''.join(map(framed, contents))


def content_of(value):
    """What is in the one frame of a small pickle."""
    data = pickle.dumps(value, 4)
    assert data[2:3] == pickle.FRAME
    assert len(data) == 11 + int.from_bytes(data[3:11], 'little')
    return data[11:]


def cuts(content):
    """Where its opcodes begin, but for the first one."""
    return [at for _, _, at in pickletools.genops(content)][1:]


def slots_of(stream):
    """By the name of an opcode: which slots what it makes is put into."""
    slots, count, made = collections.defaultdict(list), 0, None
    for opcode, _, _ in pickletools.genops(stream):
        if opcode.name == 'MEMOIZE':
            slots[made].append(count)
            count += 1
        made = opcode.name
    return slots


class OftenCase:
    """Upkeep comes in each gap between two frames behind an entry."""

    def setUp(self):
        often = mock.patch.object(memo_upkeep, '_MIN_UNSEEN', 1)
        often.start()
        self.addCleanup(often.stop)
        super().setUp()


class TestSameAsTheStockCheck(OftenCase, plain.TestSameAsTheStockCheck):
    pass


class TestNotRecognised(OftenCase, plain.TestNotRecognised):
    pass


class FramesCase(OftenCase, plain.StorageTest):
    """Metadata of which the test chooses the frames."""

    def write_frames(self, *contents, protocol=4):
        with open(self.metadata_path, 'wb') as f:
            f.write(stream_of(*contents, protocol=protocol))

    def entries(self, *further):
        """The opcodes of metadata with two shards, two entries and more."""
        described = {'w': [shard((2, 3)), shard((4, 3))]}
        storage = {
            self.index(): FILE,
            self.index('v', (2, 0)): '1_0.distcp',
            **dict.fromkeys(further, FILE),
        }
        return content_of(Metadata(described, storage, {'w': ('w',)}))

    def executed(self):
        """Wraps the frames of upkeep; -> a list that receives them."""
        frames = []
        original = memo_upkeep.MemoUpkeep.next_frame

        def next_frame(upkeep):
            content = original(upkeep)
            frames.append(content)
            return content

        patch = mock.patch.object(
            memo_upkeep.MemoUpkeep, 'next_frame', next_frame
        )
        patch.start()
        self.addCleanup(patch.stop)
        return frames


class TestFrames(FramesCase):
    def test_cut_between_opcodes(self):
        """Upkeep changes nothing, wherever it comes."""
        content = self.entries()
        frames = self.executed()
        for at in cuts(content):
            self.write_frames(content[:at], content[at:])
            for offset in ((0, 0), (2, 0)):
                wanted = {'w': self.weight(offset=offset)}
                self.assertIs(self.by_storage(wanted), offset == (0, 0), at)
        self.assertGreater(sum(map(bool, frames)), len(cuts(content)))

    @parameterized.expand([(4,), (5,)])
    def test_every_opcode_a_frame(self, protocol):
        content = self.entries()
        ends = [*cuts(content), len(content)]
        begins = [0, *ends[:-1]]
        self.write_frames(
            *(content[a:b] for a, b in zip(begins, ends, strict=True)),
            protocol=protocol,
        )
        frames = self.executed()
        self.check(True)
        # The first two shards and entries: what they hold, what is put there.
        self.assertGreaterEqual(sum(map(bool, frames)), 8)

    def test_cut_within_an_opcode(self):
        content = self.entries()
        inside = set(range(1, len(content))) - set(cuts(content))
        self.assertGreater(len(inside), 100)
        for at in inside:
            self.write_frames(content[:at], content[at:])
            self.assertIsNone(self.by_storage({'w': self.weight()}), at)

    def test_argument_that_would_take_the_next_frame(self):
        # Each takes the opcode of a frame, 0x95, for its one-byte argument.
        content = self.entries()
        at = cuts(content)[-3]
        for opcode in (b'K', b'h', b'q', b'\x8c', b'C', b'U', b'\x8a', b'\x82'):
            self.write_frames(content[:at] + opcode, content[at:])
            self.check_declined()

    def test_reads_of_other_sizes(self):
        data = stream_of(b'N.')
        sizes = [1, 1, 1, 8, 2]
        for count, size in enumerate(sizes):
            for other in (size - 1, size + 1):
                f = io.BufferedReader(io.BytesIO(data))
                stream = memo_upkeep.FrameStream(f, len(data), bytes)
                for earlier in sizes[:count]:
                    stream.read(earlier)
                with self.assertRaisesRegex(ValueError, 'crosses the end'):
                    stream.read(other)

    def test_longer_frame_than_there_is(self):
        content = self.entries()
        with open(self.metadata_path, 'wb') as f:
            f.write(b'\x80\x04' + pickle.FRAME + b'\xff' * 7 + b'\0' + content)
        self.check_declined('expected another frame')

    def test_opcodes_without_a_frame(self):
        content = self.entries()
        with open(self.metadata_path, 'wb') as f:
            f.write(stream_of(content[:-1]) + content[-1:])
        self.check_declined('expected another frame')


class TestUsedAgain(FramesCase):
    """What upkeep has changed is taken from the memo by the file."""

    def setUp(self):
        super().setUp()
        self.content = self.entries(
            *(self.index('w', (number, 0)) for number in range(9, 29))
        )
        # In the last frame, behind the storage: a field that no one reads.
        at = self.content.index(b'flat_mapping') - 2
        self.head, self.tail = self.content[:at], self.content[at:]
        self.slots = slots_of(self.content)
        self.num_seen = self.seen_slots()

    def seen_slots(self):
        """How many slots upkeep looks at before the last frame."""
        self.use(0, b'')
        seen = []
        original = memo_upkeep.MemoUpkeep.clear

        def clear(upkeep):
            seen.append(upkeep._num_seen_slots)
            original(upkeep)

        with mock.patch.object(memo_upkeep.MemoUpkeep, 'clear', clear):
            self.check(True)
        return seen[-1]

    def use(self, slot, opcodes):
        """The last frame takes a slot, executes opcodes, and leaves it off."""
        get = b'h' + bytes([slot])
        self.write_frames(self.head, get + opcodes + b'0' + self.tail)

    def objects(self):
        """Slots of a shard and an index whose states were seen."""
        _, shard_slot, _, index_slot, *_ = self.slots['NEWOBJ']
        self.assertLess(index_slot + 1, self.num_seen)
        return shard_slot, index_slot

    def test_state_is_filled(self):
        for slot in self.objects():
            self.use(slot + 1, b'K\x01K\x02s')
            self.check_declined('item assignment')

    def test_state_of_another_object(self):
        for slot in self.objects():
            self.use(slot, b'h' + bytes([slot + 1]) + b'b')
            self.check_declined('has no len()')

    def test_state_is_hashed(self):
        for slot in self.objects():
            self.use(slot + 1, b'0}h' + bytes([slot + 1]) + b'K\x01s')
            self.check_declined('unhashable')

    def test_state_is_a_field(self):
        for key in (b'storage_metadata', b'state_dict_metadata'):
            state = b'h' + bytes([self.objects()[0] + 1])
            push = b'\x8c' + bytes([len(key)]) + key + state
            self.write_frames(self.head, push + self.tail)
            self.assertFalse(self.stock({'w': self.weight()}))
            self.check_declined('a field is empty or no dict')

    @parameterized.expand([(b'Q',), (b'P7\n',)])
    def test_persistent_id_of_the_file(self, opcode):
        self.use(self.slots['TUPLE2'][0], opcode)
        self.check_declined('has a persistent id')
        with mock.patch.object(memo_upkeep, '_MIN_UNSEEN', 1000):
            self.check_declined('has a persistent id')


class Box:
    """Built from a state that it does not keep."""

    __slots__ = ('name', 'shape')
    upkeep = None

    def __init__(self, name, shape):
        self.name, self.shape = name, shape

    def __getstate__(self):
        return {'name': self.name, 'shape': self.shape}

    def __setstate__(self, state):
        share = Box.upkeep.shared.setdefault
        self.name, self.shape = (share(v, v) for v in state.values())
        Box.upkeep.unseen += 1


class KeptUpUnpickler(pickle.Unpickler):
    """Unpickles boxes with upkeep."""

    def __init__(self, data):
        self.upkeep = Box.upkeep = memo_upkeep.MemoUpkeep([Box])
        f = io.BufferedReader(io.BytesIO(data))
        stream = memo_upkeep.FrameStream(f, len(data), self.upkeep.next_frame)
        super().__init__(stream)

    def find_class(self, module, name):
        return Box

    def persistent_load(self, pid):
        return self.upkeep.persistent_load(pid)


class TestUpkeepAlone(unittest.TestCase):
    NUM_BOXES = 10000  # a frame has a thousand

    def setUp(self):
        self.addCleanup(setattr, Box, 'upkeep', None)
        boxes = [
            Box(f'name {number % 3}', (number % 2, 5))
            for number in range(self.NUM_BOXES)
        ]
        # At the end all are taken from the memo again.
        self.value = (
            boxes,
            [box.name for box in boxes],
            [box.shape for box in boxes],
        )
        self.data = pickle.dumps(self.value, 4)

    def check(self, data):
        boxes, names, shapes = KeptUpUnpickler(data).load()
        expected, *expected_values = self.value
        self.assertEqual([names, shapes], expected_values)
        self.assertEqual(
            [(box.name, box.shape) for box in boxes],
            [(box.name, box.shape) for box in expected],
        )
        return names, shapes

    def test_values_are_what_they_were(self):
        for values, count in zip(self.check(self.data), (3, 2), strict=True):
            # There is one object for each, but of the last frames.
            num_objects = len(set(map(id, values)))
            self.assertGreater(num_objects, count)
            self.assertLess(num_objects, self.NUM_BOXES // 2)

    def peak_bytes(self, *kept):
        """Of a load whose upkeep does nothing about some types."""
        unpickler = KeptUpUnpickler(pickle.dumps(self.value[:2], 4))
        for cls in kept:
            del unpickler.upkeep._kinds[cls]
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        unpickler.load()
        return tracemalloc.get_traced_memory()[1]

    @parameterized.expand([(dict, 250), (str, 50), (tuple, 50)])
    def test_memory(self, cls, least_bytes):
        """Of every box, what the memo would keep is let go of."""
        kept_bytes = self.peak_bytes(cls)
        tracemalloc.stop()
        self.assertLess(
            self.peak_bytes(), kept_bytes - least_bytes * 0.8 * self.NUM_BOXES
        )

    def test_few_entries_are_left_unseen(self):
        unpickler = KeptUpUnpickler(self.data)
        unpickler.load()
        self.assertGreater(unpickler.upkeep.unseen, 0)
        self.assertLess(unpickler.upkeep.unseen, self.NUM_BOXES // 2)

    def test_values_are_let_go_of(self):
        unpickler = KeptUpUnpickler(self.data)
        unpickler.load()
        held = unpickler.upkeep.shared, unpickler.upkeep._first_slots
        self.assertTrue(all(held))
        unpickler.upkeep.clear()
        self.assertFalse(any(held))

    def fill(self, which, opcodes):
        """Put a tuple, behind the first frame, where one of its tuples is."""
        end = 11 + int.from_bytes(self.data[3:11], 'little')
        slot = slots_of(self.data[:end] + b'.')['TUPLE2'][which]
        put = b'r' + slot.to_bytes(4, 'little') + b'0'
        return self.data[:end] + framed(opcodes + put) + self.data[end:]

    def test_slot_is_filled_again(self):
        """The first of equal values may be gone when it is needed."""
        self.check(self.fill(0, b'K\x00K\x05\x86'))
        with self.assertRaisesRegex(ValueError, 'is used again'):
            KeptUpUnpickler(self.fill(0, b'K\x07K\x05\x86')).load()

    @parameterized.expand([('seen', 0), ('not_yet_seen', -1)])
    def test_deep_tuples_are_not_hashed(self, name, which):
        """Hashing goes as deep as they do, and has no limit."""
        data = self.fill(which, b')' + b'\x85' * 1_000_000)
        with self.assertRaisesRegex(ValueError, 'more than plain values'):
            KeptUpUnpickler(data).load()


if __name__ == '__main__':
    unittest.main()
