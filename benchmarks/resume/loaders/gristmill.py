"""gristmill, as docs/train/loader.md and docs/train/packed_rows.md say."""

import itertools

import grain  # noqa: F401  (A feed imports it: imports do not count.)

from benchmarks.resume.formats import GrainLoader, run_module
from benchmarks.resume.protocol import PACKED_TOKENS, SEED, numbers_of, tokens_of
from gristmill import loader
from gristmill.dataset import Writer, encode_example

TITLE = "gristmill"
PACKAGES = ("gristmill", "grain")


def write(folder, shards, encode=bytes):
    shards = [*shards]
    with Writer(folder, name="records", records_per_shard=len(shards[0])) as writer:
        for record in itertools.chain(*shards):
            writer.write(encode(record))


def append(folder, shards):
    write(folder.with_name("later"), shards)
    run_module("gristmill", "append", folder, folder.with_name("later"))


def write_packed(folder, shards):
    of = folder.with_name("examples")
    write(of, shards, lambda each: encode_example({"tokens": tokens_of(each)}))
    how = ("--column", "tokens", "--length", PACKED_TOKENS)
    run_module("gristmill", "pack", of, folder, *how)


class Loader(GrainLoader):
    def __init__(self, job):
        data = [loader.open(folder) for folder in job.folders]
        decode = loader.PackedRows.of(data[0]) if job.packing else numbers_of
        how = {"batch_size": job.batch, "seed": SEED, "epochs": 1}
        if len(data) > 1:
            how["weights"] = dict(zip("ab", job.weights, strict=True))
        given = dict(zip("ab", data, strict=True)) if len(data) > 1 else data[0]
        host = {"host": (job.host, job.hosts)}
        batches = loader.global_batches(given, **how)
        self._job = job
        self._data = batches.feed(decode=decode, workers=job.workers, **host)
        self.close = self._data.close

    def next(self):
        rows = super().next()
        if isinstance(rows, dict):
            rows = rows["inputs"][rows["inputs_segmentation"] > 0]
        return rows
