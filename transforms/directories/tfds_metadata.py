"""The metadata by which TFDS reads a converted dataset, made from that of the input."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from gristmill.dataset.base.errors import DataLossError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import TFDS_INFO_JSON
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.tfds_info import TfdsSplit, path_template
from gristmill.transforms.directories.tfds_directory import TfdsDirectory


def check_records_read(split: TfdsSplit, table: ShardTable, *, where: str) -> None:
    """Compares the records read from each file with `shardLengths`.

    What a user's function drops or adds is counted after that. Files with damage that
    was set aside are skipped: how many records that was is unknown.

    Args:
        split: What `dataset_info.json` says.
        table: What was read.
        where: The TFDS directory, for messages.

    Raises:
        DataLossError: They differ.
    """
    expected = np.array(split.file_records, np.int64)
    files = table.columns["span_file"]
    got = np.zeros(max(len(expected), int(files.max(initial=-1)) + 1), np.int64)
    np.add.at(got, files, table.columns["span_records"])
    expected = np.pad(expected, (0, len(got) - len(expected)))
    spans = np.diff(table.columns["span_ends"], prepend=0)
    damaged = np.repeat(table.columns["quarantined_regions"] > 0, spans)
    differs = got != expected
    differs[files[damaged]] = False
    if not differs.any():
        return
    file = int(np.flatnonzero(differs)[0])
    path = split.files[file] if file < len(split.files) else "a file that came later"
    raise DataLossError(
        f"split {split.name} does not hold the records that {TFDS_INFO_JSON} says",
        where=f"{where}, {int(differs.sum()):,} of {len(got):,} files, such as {path}",
        expected=f"{int(expected.sum()):,} records, {expected[file]:,} in this file",
        got=f"{int(got.sum()):,} records, {got[file]:,} in this file",
        cure="copy the dataset again from where it was made. If the files are right, "
        f"correct shardLengths in {TFDS_INFO_JSON}; finished shards are kept",
    )


def tfds_metadata(
    source: TfdsDirectory, *, name: str, tables: Mapping[str, ShardTable]
) -> dict[str, bytes]:
    """Returns the files by which TFDS reads the converted dataset.

    `tfds.builder_from_directory(output).as_data_source()` needs no more than these.
    Fields of `dataset_info.json` that say nothing of files stay as they are. A split is
    left out if it is not in the output, if its shards are not named as TFDS looks for
    them, or if it has no records: TFDS then fails to open any split.

    Args:
        source: What the input says.
        name: The output's name.
        tables: The shards of splits of one edition in the output, by the edition's
            `layout.edition_key`.

    Returns:
        The content of each file by its name, `dataset_info.json` last: TFDS takes a
        directory without it for unfinished.
    """
    splits = []
    keys = {layout.parse_edition_key(key)[0]: key for key in tables}
    for old in source.info["splits"]:
        key = keys.get(old["name"])
        if key is None or not (table := tables[key]).total("records"):
            continue
        names = (
            layout.shard_name(name, key, shard, len(table))
            for shard in range(len(table))
        )
        if any(path != wanted for path, wanted in zip(table.paths, names, strict=True)):
            continue
        # Protocol buffers write 64-bit integers as text. The size is that of the
        # examples, as the writers of TFDS count it.
        fields = {
            "filepathTemplate": path_template(key),
            "shardLengths": [str(records) for records in table.records.tolist()],
            "numBytes": str(table.total("raw_bytes")),
        }
        splits.append(old | fields)
    info = {**source.info, "name": name, "fileFormat": "array_record", "splits": splits}
    # The other formats did not come along.
    info.pop("alternativeFileFormats", None)
    text = json.dumps(info, indent=2) + "\n"
    return {**source.files, TFDS_INFO_JSON: text.encode()}
