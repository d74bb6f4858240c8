"""Records, and files of them as the official writers make them."""

import gzip
import io
import pathlib
import random
import zlib

import numpy as np
from hypothesis import strategies as st

from gristmill.dataset import encode_frame
from gristmill.dataset.arrayrecord import footer as arrayrecord
from gristmill.dataset.arrayrecord.footer import walk_chunks
from tests.support.tensorflow_process import with_tensorflow

# What any code for records must stand: empty, one byte, binary, text, what crosses a
# 64 KiB block, what is larger than a window, and a record that holds frames itself.
AWKWARD_RECORDS = (
    b"",
    b"a",
    bytes(range(256)),
    "Grüße".encode(),
    b"\0" * 1000,
    random.Random(1).randbytes(70_000),
    b"long " * 40_000,
    random.Random(2).randbytes(1 << 20),
    b"".join(encode_frame(record) for record in (b"inner", b"", b"frames")),
    b"",
)


def text_records(count, *, seed=0):
    """Returns records of some 300 bytes that compress about as text does."""
    chance = random.Random(seed)
    words = [chance.randbytes(5).hex() for _ in range(500)]
    return [
        " ".join(chance.choices(words, k=chance.randrange(1, 60))).encode()
        for _ in range(count)
    ]


def frames_of(records):
    """Returns records as the bytes of a TFRecord file."""
    return b"".join(encode_frame(record) for record in records)


def flip(path, at):
    """Changes a bit of a byte of a file."""
    data = bytearray(pathlib.Path(path).read_bytes())
    data[at] ^= 1
    pathlib.Path(path).write_bytes(data)


def small_records(*, max_records=8):
    """Draws lists of short records, some of which hold TFRecord frames."""
    plain = st.binary(max_size=24)
    nested = st.lists(st.binary(max_size=6), min_size=1, max_size=3).map(frames_of)
    return st.lists(st.one_of(plain, plain, nested), max_size=max_records)


def write_tfrecords(path, records, *, compression=""):
    """Writes a file as TensorFlow does, without its import, which takes seconds.

    Args:
        path: The file.
        records: Its records.
        compression: ``, `GZIP` or `ZLIB`.
    """
    data = frames_of(records)
    if compression == "GZIP":
        data = gzip.compress(data, mtime=0)
    elif compression == "ZLIB":
        data = zlib.compress(data)
    pathlib.Path(path).write_bytes(data)


@with_tensorflow
def write_with_tensorflow(path, records, *, compression=""):
    """Writes the same file with TensorFlow."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)


@with_tensorflow
def read_tfrecords(path, *, compression=""):
    """Reads a file with TensorFlow."""
    import tensorflow as tf

    dataset = tf.data.TFRecordDataset(str(path), compression_type=compression)
    return [bytes(record) for record in dataset.as_numpy_iterator()]


def write_array_records(path, records, *, options="group_size:1"):
    """Writes an ArrayRecord file with the official writer."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()


def official_options(options):
    """Returns options as the official writer takes them.

    The number of threads is given because that writer records it in the footer.
    """
    return f"group_size:{options.group_size},{options.compression},max_parallelism:1"


def read_array_records(path):
    """Reads an ArrayRecord file with the official reader."""
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(str(path))
    try:
        return [bytes(record) for record in reader.read_all()]
    finally:
        reader.close()


def array_record_bytes(records, *, options, folder):
    """Returns the bytes of an ArrayRecord file from the official writer."""
    path = pathlib.Path(folder, "made.array_record")
    write_array_records(path, records, options=options)
    return path.read_bytes()


def footer_of(data, *, path="test"):
    """Reads the footer of a file that is in memory."""
    return arrayrecord.read_footer(
        lambda begin, end: data[begin:end], len(data), path=path
    )


def decode_file(data, *, path="test", range_bytes=4 << 20):
    """Decodes all records of an ArrayRecord file with gristmill's codec."""
    footer = footer_of(data, path=path)
    file = io.BytesIO(data)
    file.seek(footer.chunk_offsets[0])
    walk = walk_chunks(file, footer, path=path, range_bytes=range_bytes)
    return [record for chunks in walk for record in chunks.encoded().decode()]


def checksums(records):
    """Returns uint32 [records], the crc32c of each."""
    import google_crc32c

    return np.array([google_crc32c.value(record) for record in records], np.uint32)
