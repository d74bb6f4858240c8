"""Feeds, decoded arrays, and places of records in their sources."""

import functools
import gzip
import json
import pathlib
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill import loader
from gristmill.dataset import ColumnWriter, encode_example, encode_frame
from tests.golden.cases import case
from tests.golden.facts import (
    alike,
    bucket,
    command,
    digest,
    digest_of_array,
    folder,
)
from tests.golden.inputs import stored_gzip, tar
from tests.servers.buckets import upload

FEATURES = {
    "id": loader.FixedFeature("int64"),
    "score": loader.FixedFeature("float32", default=0.5),
    "box": loader.FixedFeature("int32", shape=(2, 2)),
    "text": loader.FixedFeature(bytes),
    "tokens": loader.RaggedFeature("int32"),
}


def example(number):
    """Returns a record of which the bytes tell the number; some lack a feature."""
    chance = random.Random(number)
    score = {"score": number / 8} if number % 3 else {}
    return encode_example(
        {
            "id": number,
            **score,
            "box": [number, -number, 7, number % 5],
            "text": f"text {number} été",
            "tokens": np.array(
                [chance.randrange(1000) for _ in range(number % 11)], np.int64
            ),
        }
    )


@functools.cache
def sources():
    """Returns three TFRecord files, the second compressed."""
    files = []
    for number in range(3):
        frames = b"".join(encode_frame(example(40 * number + n)) for n in range(40))
        files.append(pathlib.Path(folder().name, f"{number}.tfrecord"))
        files[-1].write_bytes(stored_gzip(frames) if number == 1 else frames)
    return files


@functools.cache
def records():
    """Returns a dataset of 120 examples in four shards, with columns."""
    output = f"{folder().name}/records"
    command("convert", *sources(), output, "--num-shards", 4)
    with ColumnWriter(output, {"weight": "float32", "language": "text"}) as writer:
        weight = np.arange(120, dtype=np.float32) / 4
        writer.write({"weight": weight, "language": ["de", "en", "fr"] * 40})
    return output


@functools.cache
def others():
    """Returns a dataset of the second file."""
    output = f"{folder().name}/other"
    command("convert", sources()[1], output)
    return output


@functools.cache
def rows():
    """Returns packed rows of the texts of two files, in several shards."""
    output = f"{folder().name}/rows"
    options = "--column tokens --length 8 --match-shards --eos 1 --vocabulary-size 1000"
    command("pack", *sources()[::2], output, *options.split())
    return output


def examples(**options):
    """Returns the batches of the examples."""
    options = {"batch_size": 12, "seed": 4, **options}
    return loader.global_batches(loader.open(records()), **options)


def mixture(**options):
    """Returns the batches of two datasets."""
    datasets = {"web": loader.open(records()), "books": loader.open(others())}
    return loader.global_batches(datasets, batch_size=9, **options)


def digest_of(value):
    """Returns a digest of an array, or of a ragged one."""
    if isinstance(value, loader.Ragged):
        return digest_of_array(value.values) + digest_of_array(value.row_splits)
    return digest_of_array(value)


def shown(value):
    """Returns the first values of an array as a short text, after its type."""
    array = value.values if isinstance(value, loader.Ragged) else np.asarray(value)
    parts = array.ravel()[:12].tolist()
    texts = [part.decode() if isinstance(part, bytes) else str(part) for part in parts]
    return f"{array.dtype}: {' '.join(texts)}"


def facts(batches, steps=12):
    """Returns the arrays of the first batches: their beginnings, and digests."""
    found = [batch for batch, _ in zip(batches, range(steps), strict=False)]
    arrays = {
        name: [
            shown(found[0][name]),
            shown(found[-1][name]),
            digest(digest_of(batch[name]).encode() for batch in found),
        ]
        for name in found[0]
    }
    return {"batches": len(found), **arrays}


def alone(batches, **options):
    """Returns the feed of the only host."""
    return batches.feed(host=(0, 1), **options)


def decoder(*names):
    return loader.ExampleDecoder({name: FEATURES[name] for name in names or FEATURES})


def packed_batches(datasets, **options):
    """Returns the facts of a feed of rows."""
    steps = options.pop("steps", 12)
    batches = loader.global_batches(datasets, **options)
    with alone(batches, decode=loader.PackedRows.of(datasets)) as feed:
        return facts(feed, steps)


@case
def decoded_by_threads():
    with alone(examples(), decode=decoder()) as feed:
        return facts(feed, steps=25)


@case
def decoded_by_a_worker():
    """A process gives what threads give, also from a later step."""
    found = []
    for workers in (1, 0):
        options = {"decode": decoder("id", "text"), "workers": workers}
        with alone(examples(), start_step=3, **options) as feed:
            found.append(facts(feed, steps=9))
    return alike(dict(enumerate(found)))


@case
def decoder_of_a_table():
    """A dataset of a table describes its features."""
    columns = {
        "label": [n * 3 for n in range(50)],
        "tokens": [list(range(n % 6)) for n in range(50)],
        "score": [None if n % 7 == 2 else n / 2 for n in range(50)],
        "name": [f"row {n}" for n in range(50)],
    }
    pq.write_table(pa.table(columns), "table.parquet", row_group_size=16)
    command("convert", "table.parquet", "out")
    data = loader.open("out")
    decode = loader.ExampleDecoder.of(data, defaults={"score": -1.0})
    batches = loader.global_batches(data, batch_size=10, epochs=2, shuffle="block")
    with alone(batches, decode=decode) as feed:
        return facts(feed)


@case
def packed_feed():
    data = loader.open(rows())
    found = packed_batches(data, batch_size=4, seed=5, epochs=2, steps=100)
    return found | {"rows": len(data)}


@case
def mixture_of_rows_by_tokens():
    data = loader.open(rows())
    whole = {"all": data, "again": loader.open(rows())}
    some = {"all": data, "long": data.select(np.arange(len(data)) % 5 == 1)}
    weights = loader.token_weights(whole, {"all": 1, "again": 2})
    even = {"all": 1, "long": 1}
    return {
        "by tokens": packed_batches(whole, batch_size=6, weights=weights),
        "by rows": packed_batches(some, batch_size=6, weights=even),
    }


@case
def mixture_of_records():
    batches = mixture(seed=3, weights={"web": 2, "books": 1})
    with alone(batches, decode=decoder()) as feed:
        return facts(feed)


@case
def state_on_other_hosts():
    """Three hosts go on where one was, and one where they were."""
    ids, states = [], {None}
    for hosts, steps in ((1, 4), (3, 3), (1, 8)):
        (state,), states, parts = states, set(), []
        for host in range(hosts):
            with examples().feed(host=(host, hosts), decode=decoder("id")) as feed:
                if state is not None:
                    feed.set_state(json.loads(state))
                parts.append([next(feed)["id"].tolist() for _ in range(steps)])
                states.add(json.dumps(feed.get_state(), sort_keys=True))
        ids += [[n for part in step for n in part] for step in zip(*parts, strict=True)]
    return {"ids": [" ".join(map(str, batch)) for batch in ids]}


@case
def columns_beside_records():
    chosen = loader.open(records()).select("weight >= 3 and language != 'en'")
    some, found = loader.global_batches(chosen, batch_size=8, seed=1), {}
    options = {"decode": decoder("id"), "columns": ["weight", "language"]}
    for name, batches in (("all", examples()), ("chosen", some)):
        with alone(batches, **options) as feed:
            found[name] = facts(feed)
    return found


@case
def evaluation_with_a_mask():
    """Two hosts see each record once, in batches that are all full."""
    batches = examples(shuffle="none", epochs=1, batch_size=50, drop_remainder=False)
    options, found = {"decode": decoder("id", "text"), "mask": "real"}, {}
    for host in range(2):
        with batches.feed(host=(host, 2), **options) as feed:
            seen = [*feed]
        found[str(host)] = {
            "ids": [" ".join(map(str, batch["id"].tolist())) for batch in seen],
            "real": [sum(batch["real"].tolist()) for batch in seen],
            "texts": [len(batch["text"]) for batch in seen],
        }
    return found


@case
def global_arrays():
    """Arrays of JAX, on as many devices as there are."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    decode = loader.ExampleDecoder({"id": loader.FixedFeature("int32")})
    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    feed = examples(batch_size=24).feed(decode=decode, host=sharding)
    with loader.to_jax(feed, sharding) as arrays:
        return facts({"id": np.asarray(batch["id"])} for batch in arrays)


@case
def a_source_of_grain():
    """Files of a dataset in a pipeline, and a dataset itself."""
    import grain

    data, found = loader.open(records()), {}
    files = [data.shard(number).path for number in range(data.facts.shards)]
    for name, source in (
        ("files", loader.ArrayRecordDataSource(files)),
        ("range", loader.ArrayRecordDataSource(f"{files[0]}[5:20]")),
        ("dataset", data),
    ):
        pipeline = grain.MapDataset.source(source)[1::2].repeat(2)
        batches = pipeline.batch(4, batch_fn=list).map(decoder("id", "box"))
        found[name] = facts(iter(batches.to_iter_dataset())) | {"records": len(source)}
    return found


@case
def read_from_a_bucket():
    local, found = records(), {}
    with bucket() as server:
        upload(server, local, "records")
        data = loader.open("gs://bucket/records")
        for shuffle in ("global", "block"):
            options = {"batch_size": 12, "seed": 4, "shuffle": shuffle}
            batches = loader.global_batches(data, **options)
            with alone(batches, decode=decoder(), columns=["weight"]) as feed:
                found[shuffle] = facts(feed)
    return found


def leaves(value):
    """Yields the values in a result that a command printed."""
    if isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves(part)
    else:
        yield value


def place(found):
    """Returns the file of a record, and its place there."""
    offset = found.source_offset_bytes
    number = found.source_record if offset is None else f"byte {offset}"
    sample = f" {found.source_sample}" if found.source_sample else ""
    return f"{pathlib.Path(found.source_path).name} {number}{sample}"


def traced(data, *options):
    """Returns the values of what `trace` tells."""
    order = (
        "--batch-size 12 --seed 4" if data == records() else "--batch-size 4 --seed 5"
    )
    told = command("trace", data, *order.split(), *options, "--json")
    return [*leaves(json.loads(told))]


@case
def traces_to_frames():
    """The record of a step's row is in its file where `trace` says, and back."""
    batches, found = examples(), []
    for step, row in ((0, 0), (3, 7), (9, 11), (1000, 5)):
        origin = batches.locate(step, row)
        record = batches.read(step)[row]
        raw = pathlib.Path(origin.source_path).read_bytes()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        assert raw[origin.source_offset_bytes :].startswith(encode_frame(record))
        told = traced(records(), "--step", step, "--row", row)
        expected = {origin.source_offset_bytes, origin.source_path, origin.record}
        assert expected <= {*told}
        epochs = ("--first-epoch", origin.epoch, "--stop-epoch", origin.epoch + 1)
        back = traced(records(), "--records", origin.record, *epochs)
        assert back == [origin.epoch, step, row]
        found.append(f"{step} {row}: {origin.epoch} {origin.record} {place(origin)}")
    return {"found": found}


@case
def traces_of_other_sources():
    """Rows of tables, samples of tars, and records of a dataset of a dataset."""
    table = pa.table({"n": range(50), "text": [f"row {n}" for n in range(50)]})
    pq.write_table(table, "t.parquet", row_group_size=16)
    members = [
        (f"sample{number:03d}.{kind}", f"{kind} {number}".encode() * (number + 1))
        for number in range(30)
        for kind in ("txt", "cls")
    ]
    pathlib.Path("t.tar").write_bytes(tar(members))
    found = {}
    for name, inputs, *options in (
        ("parquet", "t.parquet", "--num-shards", 2),
        ("tar", "t.tar"),
        ("dataset", records(), "--num-shards", 2),
    ):
        command("convert", inputs, name, *options)
        batches = loader.global_batches(loader.open(name), batch_size=5, seed=2)
        found[name] = [place(batches.locate(step, 3)) for step in (0, 1, 2, 77)]
    return found


@case
def traces_of_tokens():
    """A token leads to its document, and that to all rows that have a piece of it."""
    batches = loader.global_batches(loader.open(rows()), batch_size=4, seed=5)
    found = []
    for step, row in ((0, 0), (2, 1), (5, 3), (40, 2)):
        origin = batches.locate(step, row)
        for piece in origin.pieces:
            documents = batches.find_document(
                piece.source_path, piece.source_offset_bytes, stop_epoch=1
            )
            seen = [
                [part.record, part.first_token, *map(list, part.sightings)]
                for document in documents
                for part in document.pieces
            ]
            if not origin.epoch:
                assert [0, step, row] in [where for part in seen for where in part[2:]]
            span = f"{piece.begin_token} {piece.end_token} {piece.first_token}"
            found.append(f"{step} {row} {span}: {place(piece)}, {json.dumps(seen)}")
    (piece,) = batches.locate(2, 1, token=3).pieces
    expected = {piece.source_path, piece.source_offset_bytes, piece.end_token}
    assert expected <= {*traced(rows(), "--step", 2, "--row", 1, "--token", 3)}
    return {"found": found}


@case
def traces_of_a_mixture():
    batches, found = mixture(weights={"web": 1, "books": 1}), []
    for step, row in ((0, 0), (0, 1), (30, 4), (31, 4)):
        origin = batches.locate(step, row)
        epochs = {"first_epoch": origin.epoch, "stop_epoch": origin.epoch + 1}
        (seen,) = batches.find(origin.record, origin.dataset, **epochs)
        assert tuple(seen) == (origin.epoch, step, row)
        record = f"{origin.dataset} {origin.epoch} {origin.record}"
        found.append(f"{step} {row}: {record}, {place(origin)}")
    return {"found": found}


def parts(value):
    """Yields the dicts in a result, the innermost first."""
    if isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from parts(part)
    if isinstance(value, dict):
        yield value


def counts(result, source):
    """Returns the counts of a source in a result of `account`."""
    names = ("documents", "different_documents", "tokens", "different_tokens")
    for part in parts(result):
        if any(isinstance(v, str) and v.endswith(source) for v in part.values()):
            return {name: part[name] for name in names if part[name] is not None}
    raise AssertionError(f"no counts of {source}")


@case
def accounts_of_sources():
    """What a run has seen of each file before a step."""
    found = {}
    for name, data, steps, files in (
        ("records", records(), 7, sources()),
        ("records, epochs", records(), 25, sources()),
        ("rows", rows(), 3, sources()[::2]),
        ("rows, epochs", rows(), 30, sources()[::2]),
    ):
        order = ("--batch-size", 12, "--seed", 4, "--steps", steps, "--json")
        result = json.loads(command("account", data, *order))
        found[name] = {file.name: counts(result, file.name) for file in files}
    return found
