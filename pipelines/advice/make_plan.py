"""The plan of a conversion: inputs listed and sampled, and options chosen."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from gristmill.dataset.arrayrecord.chunk_hash import is_compiled
from gristmill.dataset.arrayrecord.writer_options import (
    DEFAULT_COMPRESSION,
    DEFAULT_GROUP_SIZE,
    WriterOptions,
)
from gristmill.dataset.base.errors import InputError
from gristmill.loader.order.batch_sizes import host_rows
from gristmill.pipelines.advice import choose
from gristmill.pipelines.advice.advised_plan import Candidate, Epoch, Plan, assumptions
from gristmill.pipelines.advice.cost import Assumptions, Measured, Prices, cost_of
from gristmill.pipelines.advice.encoded_sizes import (
    COMPRESSIONS,
    GROUP_SIZES,
    Encoded,
    Estimate,
    amount,
    encode_sample,
)
from gristmill.pipelines.advice.epoch_requests import Stored, epoch_requests
from gristmill.pipelines.advice.measure_cpu import ConversionCpu, measure_cpu
from gristmill.pipelines.advice.read_sample import Sample, read_sample
from gristmill.pipelines.local.pool import default_workers
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.conversions import ConvertOptions, command_of
from gristmill.transforms.conversion.job_inputs import list_inputs
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.planning.plan_by_bytes import plan_by_bytes
from gristmill.transforms.planning.shard_plan import PlanOptions, ShardPlan
from gristmill.transforms.sources.formats import FORMATS
from gristmill.transforms.sources.input_files import InputFiles

_USUAL_BATCH = 1024
_Split = tuple[ConversionJob, InputFiles]


def make_plan(
    options: ConvertOptions,
    *,
    hosts: int,
    batch_size: int | None,
    workers: int | None = None,
) -> Plan:
    """Plans a conversion and the training on its output.

    Args:
        options: The conversion. Its encoding and its shards are chosen here.
        hosts: Hosts of the training.
        batch_size: Rows of the global batch; None for about a thousand.
        workers: Processes of the conversion on this machine; None for all cores.

    Raises:
        InputError: The inputs cannot be used, or have no records.
        GristmillError: Reading or converting a part of them failed.
    """
    rows = batch_size or hosts * max(1, _USUAL_BATCH // hosts)
    host_rows(rows, process_index=0, process_count=hosts)  # They must divide evenly.
    given, workers = workers, workers or default_workers()
    splits = [(job, list_inputs(job)) for job in conversion_of(options).jobs]
    total = sum(int(files.sizes.sum()) for _, files in splits)
    samples = [
        read_sample(job, files, share=int(files.sizes.sum()) / max(1, total))
        for job, files in splits
    ]
    if not any(part.records for sample in samples for part in sample.parts):
        raise InputError(
            "the sample of the inputs holds no records",
            where=" ".join(options.input),
            expected="at least one record",
            got=next((one.damaged for one in samples if one.damaged), "none"),
            cure="see whether the inputs have records, and what --map drops",
        )
    found = {
        (compression, group_size): encode_sample(
            samples, compression=compression, group_size=group_size
        )
        for compression in COMPRESSIONS
        for group_size in GROUP_SIZES
    }
    group_size = choose.choose_group_size(found)
    compression = choose.choose_compression(found, int(group_size.value))
    cut = choose.choose_shards(
        total,
        workers=workers,
        one_cut=len(splits) == 1 and bool(splits[0][1].splittable.all()),
        shards_of=functools.partial(_shards_of, splits),
    )
    options = dataclasses.replace(
        options,
        compression=str(compression.value),
        group_size=int(group_size.value),
        num_shards=int(cut.value) if cut.option == "--num-shards" else None,
        shard_size=cut.value if cut.option == "--shard-size" else None,
    )
    plans = [
        _planned(files, job.plan)
        for (_, files), job in zip(splits, conversion_of(options).jobs, strict=True)
    ]
    shards = sum(plan.shards for plan in plans)
    cpu = _measured_cpu(splits, samples, options, workers=workers)
    chosen = found[str(compression.value), int(group_size.value)]
    return _plan(
        splits,
        samples,
        {key: one.with_shards(shards) for key, one in found.items()},
        chosen.with_shards(shards),
        cpu,
        shards=shards,
        hosts=hosts,
        batch_size=rows,
        workers=min(workers, sum(len(plan.pass_begins) for plan in plans)),
        reasons=(compression.reason, group_size.reason, cut.reason),
        command=command_of(options, workers=given),
    )


def _planned(files: InputFiles, plan: PlanOptions) -> ShardPlan:
    """Returns the plan of shards of files."""
    return plan_by_bytes(plan, files.sizes, files.splittable)


def _shards_of(splits: Sequence[_Split], shard_bytes: int) -> int:
    options = PlanOptions(kind="shard_bytes", value=shard_bytes)
    return sum(_planned(files, options).shards for _, files in splits)


def _measured_cpu(
    splits: Sequence[_Split],
    samples: Sequence[Sample],
    options: ConvertOptions,
    *,
    workers: int,
) -> ConversionCpu:
    """Measures the conversion of parts of the largest split, as it would be."""
    with_records = [
        number
        for number, sample in enumerate(samples)
        if any(part.read_records for part in sample.parts)
    ]
    largest = max(with_records, key=lambda number: samples[number].input_bytes)
    job, files = splits[largest]
    writer = WriterOptions(
        compression=options.compression or DEFAULT_COMPRESSION,
        group_size=options.group_size or DEFAULT_GROUP_SIZE,
    )
    begins = [part.part.begin for part in samples[largest].parts if part.read_records]
    return measure_cpu(
        dataclasses.replace(job, writer=writer), files, begins, workers=workers
    )


def _plan(
    splits: Sequence[_Split],
    samples: Sequence[Sample],
    found: dict[tuple[str, int], Encoded],
    chosen: Encoded,
    cpu: ConversionCpu,
    *,
    shards: int,
    hosts: int,
    batch_size: int,
    workers: int,
    reasons: tuple[str, ...],
    command: str,
) -> Plan:
    prices, given = Prices(), Assumptions()
    input_bytes = sum(sample.input_bytes for sample in samples)
    parts = [part for sample in samples for part in sample.parts]
    lengths = np.array([len(r) for part in parts for r in part.records], np.int64)
    records, raw_bytes = Estimate(0.0), Estimate(0.0)
    for sample in samples:
        records += amount(sample, [len(part.records) for part in sample.parts])
        sizes = [sum(map(len, part.records)) for part in sample.parts]
        raw_bytes += amount(sample, sizes)
    file_bytes, index_bytes = chosen.file_bytes, chosen.index_bytes.value
    stored = Stored(
        records=max(1, round(records.value)),
        record_bytes=raw_bytes.value / max(1.0, records.value),
        chunk_bytes=chosen.chunk_bytes,
        group_size=chosen.group_size,
        shards=shards,
        index_bytes=index_bytes,
    )
    epochs = [
        epoch_requests(stored, shuffle="global", hosts=hosts, batch_size=batch_size),
        epoch_requests(stored, shuffle="block", hosts=hosts, batch_size=batch_size),
    ]
    dollars = [one.requests * prices.class_b for one in epochs]
    shuffle, copies = choose.choose_shuffle(
        epochs,
        dollars,
        hosts=hosts,
        file_bytes=file_bytes.value,
        class_b_dollars=prices.class_b,
    )
    cpu_seconds = cpu.total(input_bytes, shards=shards, workers=workers)
    cost = cost_of(
        input_bytes,
        Measured(
            cpu_seconds_per_gb=cpu.gb_seconds
            + cpu.shard_seconds * shards / (input_bytes / 1e9),
            output_ratio=file_bytes.value / input_bytes,
            cpu="this machine",
        ),
        prices=prices,
        given=given,
    )
    return Plan(
        inputs={
            "files": sum(len(files) for _, files in splits),
            "bytes": input_bytes,
            "format": FORMATS[splits[0][1].spec.format].found_as,
            "splits": [job.split for job, _ in splits],
        },
        sample={
            "ranges": len(parts),
            "records": len(lengths),
            "bytes": int(lengths.sum()),
            "share": sum(part.stored_bytes for part in parts) / input_bytes,
            "whole": all(sample.whole for sample in samples),
            "converted_bytes": cpu.measured_bytes,
        },
        records=records,
        raw_bytes=raw_bytes,
        lengths={
            "mean": stored.record_bytes,
            "median": float(np.median(lengths)),
            "p99": float(np.quantile(lengths, 0.99)),
            "most": float(lengths.max()),
        },
        candidates=tuple(
            Candidate(
                compression=one.compression,
                group_size=one.group_size,
                file_bytes=one.file_bytes,
                index_bytes=one.index_bytes.value,
                encode_seconds=one.encode_seconds,
                chosen=(one.compression, one.group_size)
                == (chosen.compression, chosen.group_size),
            )
            for one in found.values()
        ),
        file_bytes=file_bytes,
        shards=shards,
        index_bytes=index_bytes,
        hosts=hosts,
        batch_size=batch_size,
        epochs=tuple(
            Epoch(
                shuffle=one.shuffle,
                requests=one.requests,
                read_bytes=one.read_bytes,
                dollars=cost_b,
                chosen=one.shuffle == shuffle.value,
            )
            for one, cost_b in zip(epochs, dollars, strict=True)
        ),
        first_requests=epochs[0].first_requests,
        first_dollars=epochs[0].first_requests * prices.class_b
        + epochs[0].listings * prices.class_a,
        storage_dollars=file_bytes.value / 1e9 * prices.gb_month,
        workers=workers,
        cpu_seconds=cpu_seconds,
        cpu_seconds_per_worker=cpu_seconds / workers,
        minutes=cpu_seconds / workers / 60,
        dataflow={
            "machines": given.machines,
            "vcpus": given.vcpus,
            "vcpu_hours": cost.vcpu_hours,
            "minutes": cost.minutes,
            "dollars": cost.workers + cost.requests,
            "class_a_requests": cost.class_a,
            "class_b_requests": cost.class_b,
        },
        reasons=(*reasons, shuffle.reason, *([copies] if copies else ())),
        notes=(
            *_notes(samples, compiled=is_compiled()),
            *assumptions(busy=given.busy, start_minutes=given.start_minutes),
        ),
        command=command,
    )


def _notes(samples: Sequence[Sample], *, compiled: bool) -> list[str]:
    notes = []
    if not compiled:
        notes.append(
            "the chunk hash of gristmill is not compiled on this machine, so that the "
            "conversion is slower: gristmill doctor says what to install"
        )
    if any(sample.heads for sample in samples):
        notes.append(
            "compressed files: only their first bytes were read, as reading cannot "
            "begin in the middle; records that differ further on are not in the errors"
        )
    damaged = next((sample.damaged for sample in samples if sample.damaged), "")
    if damaged:
        notes.append(
            f"damaged input was met ({damaged}): the conversion stops there, unless "
            "--on-corrupt quarantine is given"
        )
    if not all(sample.whole for sample in samples):
        notes.append("±: the true number lies within in about 95 of 100 samples")
    return notes
