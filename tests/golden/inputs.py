"""Input files of cases, the same bytes with any version of any library.

Shards are planned from the sizes of files, which no compressor may decide.
"""

import csv
import io
import json
import pathlib
import random
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.dataset import encode_frame

_WORDS = ("ash", "birch", "cedar", "elm", "hazel", "larch", "maple", "oak", "willow")


def texts(count, *, seed=0, words=30):
    """Returns texts of 1 to `words` words, each with its number."""
    chance = random.Random(seed)
    return [
        " ".join([str(number), *chance.choices(_WORDS, k=chance.randint(1, words))])
        for number in range(count)
    ]


def records(count, *, seed=0, words=30):
    """Returns texts as bytes, and among them empty and binary records."""
    found = [text.encode() for text in texts(count, seed=seed, words=words)]
    found[3::17] = [b""] * len(found[3::17])
    found[5::19] = [bytes(range(256))] * len(found[5::19])
    return found


def rows(count, *, seed=0, words=30):
    """Returns rows of a table: an integer, a text, a number and a boolean."""
    return [
        {
            "id": 100 * seed + number,
            "text": text,
            "score": number / 8 - 3,
            "good": number % 3 == 0,
        }
        for number, text in enumerate(texts(count, seed=seed, words=words))
    ]


def tfrecord(items):
    """Returns a TFRecord file."""
    return b"".join(map(encode_frame, items))


def jsonl(items):
    """Returns JSON lines."""
    return "".join(json.dumps(item) + "\n" for item in items).encode()


def table(items, *, delimiter=","):
    """Returns CSV, or with a tab TSV, with a header."""
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    writer.writerows([list(items[0]), *(list(item.values()) for item in items)])
    return file.getvalue().encode()


def lines(items, *, newline="\n"):
    """Returns a text file."""
    return "".join(item + newline for item in items).encode()


def tar(members):
    """Returns a tar of files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return out.getvalue()


def samples(count, *, seed=0):
    """Returns a tar of samples for WebDataset: `txt` and `cls`, most with `json`."""
    members = []
    for number, text in enumerate(texts(count, seed=seed)):
        parts = {"txt": text.encode(), "cls": b"%d" % (number % 5)}
        if number % 4:
            parts["json"] = json.dumps({"number": number}).encode()
        members += [(f"s/{number:04d}.{part}", data) for part, data in parts.items()]
    return tar(members)


def parquet(path, items, *, group_rows=1 << 20):
    """Writes a Parquet file, plain and without compression."""
    plain = {"compression": "none", "use_dictionary": False}
    table = pa.Table.from_pylist(list(items))
    pq.write_table(table, path, row_group_size=group_rows, **plain)


def write(folder, **files):
    """Writes files, and returns their folder; `a__gz` is `a.gz`."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name.replace("__", ".")).write_bytes(data)
    return folder
