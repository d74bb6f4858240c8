"""The overview of a dataset: what it has, how it is stored, and in which order."""

from __future__ import annotations

import dataclasses
from typing import Any

from gristmill import __version__
from gristmill.dataset.base.errors import some_of
from gristmill.dataset.metadata.splits import Split
from gristmill.loader.data.batches import Batches
from gristmill.loader.data.dataset import Dataset, shards_of
from gristmill.pipelines.text.contents import feature_text
from gristmill.pipelines.text.edition_history import made_by
from gristmill.pipelines.text.split_description import (
    SplitStorage,
    map_text,
    packed_facts,
    tokenizer_digest,
)
from gristmill.pipelines.view.answers.opened_datasets import Opened, TokenTexts
from gristmill.pipelines.view.answers.shards import (
    ShardColumns,
    ShardsChart,
    extreme_shards,
    shard_columns,
    shards_chart,
)

_OPTIONS_SHOWN = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overview:
    """What is known of a dataset without reading a record.

    Attributes:
        gristmill: The version that answers.
        datasets: Those that were opened: name, path, records and, of a mixture, the
            weight of each.
        name: What the dataset is called.
        path: Where it is; of datasets that are joined, where some of them are.
        of: Its name in a mixture, "" otherwise.
        split: Its split, None of files that are in none.
        splits: All of its splits: name, records and shards of each.
        kind: `records`, or `packed` of packed rows.
        edition: The last edition that it holds, None where there are none.
        editions: All of them, with counts and sizes, and those that were replaced and
            are kept.
        records: How many records it has.
        raw_bytes: Their size before compression; None if not known.
        file_bytes: The size of the shards, likewise.
        input_bytes: The size of the input files as they are stored, likewise.
        ratio: `raw_bytes` by `file_bytes`.
        shards: How many shards it has.
        writer_options: How they were written.
        digest: Order-independent digest of all records, where known.
        map: What a `--map` function did, None if there was none.
        dropped_records: Records that it dropped.
        added_records: Records that it added.
        quarantined_regions: Damaged regions of the inputs that were set aside.
        quarantined_bytes: Their size.
        warnings: What is not as one would wish.
        packed: What packed rows hold, as pairs of a head and a text.
        packed_counts: The same as numbers, and the `length` of rows.
        features: Name and description of each feature, as far as known.
        shards_chart: Records and sizes of the shards; None if there is none.
        largest_shards: Some of the largest.
        smallest_shards: Some of the smallest.
        order: The order of a training run, None where it is not known.
        tokenizer: What shows tokens as text, None if nothing does.
    """

    gristmill: str
    datasets: list[dict[str, Any]]
    name: str
    path: str
    of: str
    split: str | None
    splits: list[dict[str, Any]]
    kind: str
    edition: int | None
    editions: list[dict[str, Any]]
    records: int
    raw_bytes: int | None
    file_bytes: int | None
    input_bytes: int | None
    ratio: float | None
    shards: int
    writer_options: list[str]
    digest: str | None
    map: str | None
    dropped_records: int
    added_records: int
    quarantined_regions: int
    quarantined_bytes: int
    warnings: list[str]
    packed: list[tuple[str, str]] | None
    packed_counts: dict[str, Any] | None
    features: list[dict[str, str]]
    shards_chart: ShardsChart | None
    largest_shards: list[dict[str, Any]]
    smallest_shards: list[dict[str, Any]]
    order: dict[str, Any] | None
    tokenizer: str | None


def overview(opened: Opened, *, of: str = "", split: str | None = None) -> Overview:
    """Returns the overview of a dataset, or of another split of it."""
    dataset = opened.dataset(of, split)
    columns = shard_columns(dataset)
    raw_bytes, file_bytes = (
        None if column is None else int(column.sum())
        for column in (columns.raw_bytes, columns.file_bytes)
    )
    found = [(p, p.committed) for p in dataset.parts if p.committed is not None]
    whole = len(found) == len(dataset.parts)
    stored = _stored(found, columns)
    inputs = [one.input_bytes for one in stored]
    committed, manifest = dataset.committed, dataset.manifest
    same = dataset is opened.datasets[opened.name(of)]
    return Overview(
        gristmill=__version__,
        datasets=_datasets(opened),
        name=shards_of(dataset).name if manifest is None else manifest.name,
        path=some_of(dict.fromkeys(part.path for part in dataset.parts)),
        of=opened.name(of),
        split=dataset.split,
        splits=[
            {"name": name, "records": one.records, "shards": one.shards}
            for name, one in sorted(manifest.splits.items() if manifest else ())
        ],
        kind="packed" if _all_packed(found) and whole else "records",
        edition=dataset.edition,
        editions=_editions(committed),
        records=len(dataset),
        raw_bytes=raw_bytes,
        file_bytes=file_bytes,
        input_bytes=(
            sum(filter(None, inputs)) if whole and None not in inputs else None
        ),
        ratio=raw_bytes / file_bytes if raw_bytes is not None and file_bytes else None,
        shards=dataset.num_shards,
        writer_options=_writer_options([one for _, one in found]),
        digest=dataset.records_digest,
        map="; ".join(filter(None, (map_text(one) for _, one in found))) or None,
        dropped_records=sum(one.dropped_records for _, one in found),
        added_records=sum(one.added_records for _, one in found),
        quarantined_regions=sum(one.quarantined_regions for _, one in found),
        quarantined_bytes=sum(one.quarantined_bytes for _, one in found),
        warnings=[
            *(warning for one in stored for warning in one.warnings),
            *_other_tokenizer(found, opened.tokens),
        ],
        packed=[fact for part, one in found for fact in packed_facts(one, part.path)]
        if _all_packed(found)
        else None,
        packed_counts=_packed_counts(dataset, found),
        features=[
            {"name": name, "text": feature_text(spec)}
            for name, spec in (dataset.features or {}).items()
        ],
        shards_chart=shards_chart(columns),
        largest_shards=extreme_shards(dataset, columns, largest=True),
        smallest_shards=extreme_shards(dataset, columns, largest=False),
        order=_order(opened.batches, opened.state_step) if same else None,
        tokenizer=None if opened.tokens is None else opened.tokens.name,
    )


def _datasets(opened: Opened) -> list[dict[str, Any]]:
    weights: list[float | None] = [None] * len(opened.datasets)
    if opened.batches is not None and opened.batches.schedule.mixture is not None:
        first = opened.batches.schedule.mixture.phases[0]
        weights = list(map(float, first.weights))
    named = zip(opened.datasets.items(), weights, strict=True)
    return [
        {"name": name, "path": one.path, "records": len(one), "weight": weight}
        for (name, one), weight in named
    ]


def _stored(
    found: list[tuple[Dataset, Split]], columns: ShardColumns
) -> list[SplitStorage]:
    """Returns the storage of each part, by the sizes already known."""
    stored, at = [], 0
    for part, split in found:
        sizes = None
        if columns.file_bytes is not None:
            sizes = columns.file_bytes[at : at + part.num_shards]
        stored.append(SplitStorage.of(part.path, split, sizes))
        at += part.num_shards
    return stored


def _editions(split: Split | None) -> list[dict[str, Any]]:
    fields = ("records", "shards", "raw_bytes", "file_bytes")
    if split is None:
        return []
    kept = [number for number in sorted(split.known) if number not in split.numbers]
    return [
        {"number": number, "replaced": number in kept, "how": made_by(split, number)}
        | {name: getattr(split.known[number], name) for name in fields}
        | {"made_by": split.known[number].source.get("gristmill_version")}
        for number in (*split.numbers, *kept)
    ]


def _writer_options(splits: list[Split]) -> list[str]:
    found = {
        option: None
        for split in splits
        for edition in split.parts
        for option in edition.writer_options.split(" | ")
    }
    shown = list(found)[:_OPTIONS_SHOWN]
    more = len(found) - len(shown)
    return [*shown, f"and {more:,} more"] if more else shown


def _all_packed(found: list[tuple[Dataset, Split]]) -> bool:
    return bool(found) and all(one.packed is not None for _, one in found)


def _packed_counts(
    dataset: Dataset, found: list[tuple[Dataset, Split]]
) -> dict[str, Any] | None:
    counts = dataset.packed_counts()
    if counts is None or not _all_packed(found):
        return None
    lengths = (
        edition.packed["length"]
        for _, split in found
        for edition in split.parts
        if edition.packed is not None
    )
    return {**counts.as_dict(), "length": max(lengths)}


def _other_tokenizer(
    found: list[tuple[Dataset, Split]], tokens: TokenTexts | None
) -> list[str]:
    """Returns a warning where texts are not those of the tokens of the rows."""
    known = {
        tokenizer_digest(edition)
        for _, split in found
        for edition in split.parts
        if edition.packed is not None
    }
    if tokens is None or not known - {None, tokens.digest}:
        return []
    return [
        f"{tokens.name} is not the tokenizer that the rows were made with, so that "
        "texts of tokens may be wrong: give the same --tokenizer as to gristmill pack"
    ]


def _order(batches: Batches | None, state_step: int | None) -> dict[str, Any] | None:
    """Returns the page's description of an order, and its number of steps."""
    if batches is None:
        return None
    schedule = batches.schedule
    first = schedule.orders[0]
    return {
        "batch_size": batches.batch_size,
        "steps": batches.steps,
        "epoch_steps": epoch_steps(batches),
        "state_step": state_step,
        "seed": first.seed,
        "shuffle": first.shuffle.kind,
        "block_records": getattr(first.shuffle, "block_records", None),
        "window_blocks": getattr(first.shuffle, "window_blocks", None),
        "drop_remainder": schedule.drop_remainder,
        "epochs": first.epochs,
        "mixture": bool(batches.names),
    }


def epoch_steps(batches: Batches) -> int:
    """Returns after how many steps the first epoch of each dataset is over.

    At most the steps that there are. Without an end, a dataset of a mixture whose
    weight became 0 does not count: its epoch is never over.
    """
    schedule = batches.schedule
    found = [
        schedule.steps_until(each, epoch=1) for each in range(len(batches.datasets))
    ]
    if schedule.steps is None:
        found = [steps for steps in found if steps < schedule.step_limit]
    return max(found, default=schedule.step_limit)
