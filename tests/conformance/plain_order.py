"""The order once more, by Python's integers alone, from what README.md says of it."""

import dataclasses
import hashlib
import heapq
import json
import math
import struct
from fractions import Fraction
from typing import Any

WORD = (1 << 64) - 1
MUL_A, MUL_B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mixed(value):
    value &= WORD
    value = ((value ^ (value >> 30)) * MUL_A) & WORD
    value = ((value ^ (value >> 27)) * MUL_B) & WORD
    return value ^ (value >> 31)


class Permutation:
    """Of [0, size): one of a family, by epoch and lane."""

    def __init__(self, size, seed, name, epoch, lane=0):
        self.size = size
        self.left = 2 * max(1, (math.isqrt(size) + 1) // 2)
        self.right = -(-size // self.left)
        text = json.dumps(["gristmill permutation", 1, size, seed, name])
        digest = hashlib.shake_256(text.encode()).digest(8 * 22)
        epoch_key, lane_key, *keys = struct.unpack("<22Q", digest)
        tweak = mixed(mixed(epoch + epoch_key) + lane * MUL_A + lane_key)
        self.rounds = [(number % 2, tweak + key) for number, key in enumerate(keys)]

    def hashed(self, value, key, size):
        value = ((value + key) * MUL_A) & WORD
        value = ((value ^ (value >> 32)) * MUL_B) & WORD
        return ((value >> 32) * size) >> 32

    def at(self, index, *, inverse=False):
        while True:
            left, right = divmod(index, self.right)
            for odd, key in reversed(self.rounds) if inverse else self.rounds:
                sign = -1 if inverse else 1
                if odd:
                    right += sign * self.hashed(left, key, self.right)
                    right %= self.right
                else:
                    left += sign * self.hashed(right, key, self.left)
                    left %= self.left
            index = left * self.right + right
            if index < self.size:
                return index


@dataclasses.dataclass(frozen=True)
class Dataset:
    name: str
    records: int
    seed: int
    shuffle: dict[str, Any]

    def record(self, position):
        """Returns the record at a position over all epochs."""
        epoch, place = divmod(position, self.records)
        if self.shuffle["kind"] == "none":
            return place
        if self.shuffle["kind"] == "global":
            name = f"global/{self.name}"
            return Permutation(self.records, self.seed, name, epoch).at(place)
        return self.in_blocks(epoch, place)

    def in_blocks(self, epoch, place):
        size = min(self.shuffle["block_records"], self.records)
        blocks = -(-self.records // size)
        windows = -(-blocks // self.shuffle["window_blocks"])
        fewer, longer = divmod(blocks, windows)
        missing = blocks * size - self.records
        order = Permutation(blocks, self.seed, f"block/blocks/{self.name}", epoch)
        short = order.at(blocks - 1, inverse=True)

        def start(slot):
            return slot * size - (missing if slot > short else 0)

        def slot_of(place):
            return (place + (missing if place >= start(short + 1) else 0)) // size

        def window_of(slot):
            border = longer * (fewer + 1)
            if slot < border:
                return slot // (fewer + 1)
            return longer + (slot - border) // fewer

        window = window_of(slot_of(place))
        begin, end = (
            start(number * fewer + min(number, longer))
            for number in (window, window + 1)
        )
        name = f"block/window/{self.name}"
        inside = Permutation(end - begin, self.seed, name, epoch, lane=window)
        place = begin + inside.at(place - begin)
        slot = slot_of(place)
        return order.at(slot) * size + place - start(slot)


def dealt(weights, position):
    """Returns the dataset at a position of a mixture, and the position in its own."""
    exact = [Fraction(str(weight)) for weight in weights]
    common = math.lcm(*(weight.denominator for weight in exact))
    counts = [int(weight * common) for weight in exact]
    divisor = math.gcd(*counts)
    heap = [(n // divisor, i, (n // divisor, i)) for i, n in enumerate(counts) if n]
    heapq.heapify(heap)
    made = len(weights)
    while len(heap) > 1:
        light, _, left = heapq.heappop(heap)
        heavy, _, right = heapq.heappop(heap)
        heapq.heappush(heap, (light + heavy, made, (light + heavy, left, right)))
        made += 1
    _, _, node = heap[0]
    while len(node) == 3:
        weight, left, right = node
        before, after = (
            (passed * left[0] + weight // 2) // weight
            for passed in (position, position + 1)
        )
        to_left = after > before
        node, position = (left, before) if to_left else (right, position - before)
    return node[1], position


def rows_of(configuration):
    """Returns datasets and records of each host's rows in each listed step."""
    datasets = [
        Dataset(name, records, configuration["seed"], configuration["shuffle"])
        for name, records in configuration["datasets"]
    ]
    batch, found = configuration["batch_size"], []
    for step, hosts, host in configuration["steps"]:
        first = step * batch + host * (batch // hosts)
        taken = [
            dealt(configuration["weights"], position)
            for position in range(first, first + batch // hosts)
        ]
        records = [datasets[number].record(place) for number, place in taken]
        found.append([[number for number, _ in taken], records])
    return found
