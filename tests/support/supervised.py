"""Committed datasets of rows of conversations, of which each token says what it is."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import random
import tempfile
from collections.abc import Sequence
from typing import Any

import google_crc32c
import numpy as np

from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.commit.commit import commit_dataset, write_table
from gristmill.dataset.commit.write import Write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_files import ShardPlace
from gristmill.dataset.metadata.shard_report import ShardReport, SourceSpan
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.jobs.pack_options import PackOptions, TokenizerSpec
from gristmill.transforms.tokens.documents import Documents
from gristmill.transforms.tokens.row_packer import (
    RowPacker,
    described_rows,
    row_features,
)
from tests.support.conversation_rows import Said, Token, spans_of
from tests.support.document_rows import sources_at

SYSTEM, USER, ASSISTANT = 0, 2, 3
END = 2  # The token at the end of a turn.


@dataclasses.dataclass(frozen=True)
class Conversation:
    """A conversation as tokens.

    Attributes:
        ids: The tokens.
        said: What each is.
    """

    ids: list[int]
    said: list[Token]


def conversations(
    count: int, *, seed: int, vocabulary: int = 320, most: int = 12
) -> list[Conversation]:
    """Returns conversations of one turn or several, with headers and ends of turns."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        ids: list[int] = []
        said: list[Token] = []
        roles = [SYSTEM] * (chance.random() < 0.3)
        roles += [USER, ASSISTANT] * chance.randint(1, 3)
        for message, role in enumerate(roles):
            content = chance.randint(1, most)
            ids += [3 + role, 9]  # A header.
            said += [None, None]
            ids += [chance.randrange(10, vocabulary) for _ in range(content)]
            trained = role == ASSISTANT
            said += [Said(role, message, trained, 1.0)] * (content + trained)
            ids.append(END)
            said += [None] * (not trained)
        found.append(Conversation(ids, said))
    return found


def supervised_dataset(
    output: pathlib.Path | str,
    shards: Sequence[Sequence[Conversation]],
    *,
    length: int = 64,
    vocabulary_size: int = 320,
    name: str = "d",
    special_ids: dict[str, int] | None = None,
    told: PackedCounts | None = None,
    **options: Any,
) -> str:
    """Commits a dataset of one split; returns its directory.

    Args:
        output: The directory.
        shards: The conversations of each shard.
        length: Tokens of a row.
        vocabulary_size: Above all ids.
        name: Of the dataset.
        special_ids: Special tokens of the tokenizer, by name.
        told: What the making of the conversations tells, of the first shard.
        **options: Further options of `PackOptions`.
    """
    output = str(output)
    spec = TokenizerSpec(
        kind="ids",
        digest="",
        library="",
        vocabulary_size=vocabulary_size,
        special_ids=special_ids or {},
    )
    given = PackOptions(length=length, found=spec, **options)
    reports, total = [], PackedCounts()
    for number, made in enumerate(shards):
        path = layout.shard_name(name, "train", number, len(shards))
        place = ShardPlace.at(output, path, packed=True)
        temporary = layout.temporary_dir(output, name, "train")
        with (
            tempfile.TemporaryDirectory() as folder,
            RowPacker(given, directory=folder) as packer,
            storage_for(output).temporary(temporary) as local,
        ):
            ids = [token for each in made for token in each.ids]
            lengths = [len(each.ids) for each in made]
            documents = Documents(
                *(np.array(ids, np.uint32), np.array(lengths, np.int64), 0, 0),
                spans=spans_of([each.said for each in made]),
                counts=(told if number == 0 else None) or PackedCounts(),
            )
            packer.add(documents, sources_at(range(0, 100 * len(made), 100)))
            with ShardWriter(local, options=WriterOptions()) as writer:
                records = [row for rows in packer.rows() for row in rows]
                writer.write(records, [google_crc32c.value(row) for row in records])
                written = writer.finish()
            stop = 100 * len(made)
            span = SourceSpan(
                file_index=number,
                begin_bytes=0,
                end_bytes=stop,
                start_bytes=0,
                stop_bytes=stop,
                records=len(made),
            )
            report = ShardReport(
                path=path,
                shard_index=number,
                job="made by a test",
                file_bytes=written.file_bytes,
                file_crc32c=written.file_crc32c,
                read=RecordsDigest(records=len(made)),
                written=written.digest,
                spans=(span,),
                packed=packer.counts(),
            )
            segments = packer.segments().encode()
            reports.append(place.publish(local, written, report, segments=segments))
            total += packer.counts()
    write = Write(output=output, name=name, split="train", id="made by a test")
    split = write_table(
        write,
        ShardTable.of(reports),
        writer_options=WriterOptions().described,
        source={
            "format": "tfrecord",
            "options": {"pack": dataclasses.asdict(given), "map": None},
        },
    )
    split = dataclasses.replace(
        split,
        packed=described_rows(given, total),
        features=row_features(given),
    )
    commit_dataset(output, name, {write: split})
    assert os.path.exists(os.path.join(output, layout.DATASET_JSON))
    return output
