"""TFRecord files for the demo: made-up text as tf.train.Example records."""

from __future__ import annotations

import os
import random
import struct

from gristmill.dataset.tfrecord.frames import encode_frame

_TEXT = """
the of and to in a is that for it was on are as with they be at this from have
or by one had not but what all were when we there can an your which their said
if do will each about how up out them then she many some so these would other
into has more her two like him see time could no make than first been its who
now people my made over did down only way find use may water long little very
after words
"""


def _length_delimited(number: int, data: bytes) -> bytes:
    size, prefix = len(data), bytearray((number << 3 | 2,))
    while size > 0x7F:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + data


def _example(text: str, number: int) -> bytes:
    """Encodes {"text": text, "id": number} as a tf.train.Example."""
    words = struct.pack("B", number & 0x7F | 0x80) + struct.pack("B", number >> 7)
    text_feature = _length_delimited(1, _length_delimited(1, text.encode()))
    id_feature = _length_delimited(3, _length_delimited(1, words))
    entries = b"".join(
        _length_delimited(1, _length_delimited(1, name) + _length_delimited(2, value))
        for name, value in ((b"text", text_feature), (b"id", id_feature))
    )
    return _length_delimited(1, entries)


def write_demo_tfrecords(directory: str, *, files: int = 4, records: int = 1000) -> str:
    """Writes TFRecord files of made-up text.

    Args:
        directory: Directory of the files; created if missing.
        files: Number of files.
        records: Number of records per file.

    Returns:
        A pattern that matches the files.
    """
    os.makedirs(directory, exist_ok=True)
    rng, words = random.Random(17), _TEXT.split()
    for file in range(files):
        path = os.path.join(directory, f"demo.tfrecord-{file:05d}-of-{files:05d}")
        frames = []
        for number in range(records):
            text = " ".join(rng.choices(words, k=rng.randint(40, 600)))
            frames.append(encode_frame(_example(text, file * records + number)))
        data = b"".join(frames)
        # Kept if it exists: a changed input would be an error in a repeated demo.
        if not os.path.exists(path) or os.path.getsize(path) != len(data):
            with open(path, "wb") as out:
                out.write(data)
    return os.path.join(directory, "demo.tfrecord-*")
