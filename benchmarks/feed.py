"""Packed rows: beside bare rows of tokens, packing on the fly, and a bucket."""

import functools
import pathlib
import sys

import numpy as np

from benchmarks import bucket_server
from benchmarks.contest import Contest, Contestant, Peer, main, make, open_feed
from benchmarks.cost import steadily
from benchmarks.pack import LENGTH, train_tokenizer, write_rows, write_texts

_BATCH_ROWS = 256
_WARM_ROWS = 8 * _BATCH_ROWS
_LATENCY_MS = 20


class Feed(Contest):
    """Feeding packed rows.

    The same documents lie in a dataset of rows of 2,048 tokens by `gristmill pack`,
    in one whose records are the same tokens and nothing else, and as texts, which
    Grain tokenises and packs first-fit in the trainer, as MaxText's pipeline does.
    Batches have 256 rows and six arrays. The bucket is on loopback, at 20 ms.
    """

    name = "feed"
    unit = "M tokens"
    reference = ("grain",)
    contestants = {
        "gristmill": Contestant("packed rows, from disk"),
        "gristmill_block": Contestant("the same from a bucket, block shuffle"),
        "gristmill_global": Contestant("the same from a bucket, global shuffle"),
        "bare": Contestant("bare rows of tokens", bound=True),
        "grain": Contestant("Grain, packing on the fly"),
    }
    options = {
        "bytes": (50_000_000, 400_000, "of text"),
        "seconds": (3.0, 0.1, "of each measurement"),
    }
    packages = ("grain", "numpy", "tokenizers", "zstandard")
    peers = (
        Peer(
            "Grain, packing on the fly",
            "grain",
            "packed rows beside tokenising and first-fit packing in the trainer",
            "gristmill",
            "grain",
        ),
    )

    def cases(self):
        """Writes documents, packed rows of them, and bare rows of the same tokens."""
        from gristmill import loader
        from gristmill.dataset import Writer

        tokenizer = train_tokenizer(self.work, self.args.bytes)
        texts, packed = self.work / "texts", self.work / "bucket" / "packed"
        write_texts(self.work / "in", self.args.bytes)
        make("convert", self.work / "in", texts, "--match-shards")
        write_rows(self.work / "in", packed, tokenizer)
        rows = loader.open(packed)
        decode, tokens = loader.PackedRows.of(rows), 0
        with Writer(self.work / "bare", shard_bytes=1 << 24) as writer:
            for begin in range(0, len(rows), 1024):
                batch = decode(rows[begin : begin + 1024])
                tokens += int(np.count_nonzero(batch["inputs_segmentation"]))
                for row in batch["inputs"].astype("<u2"):
                    writer.write(row.tobytes())
        self._tokens_of_row = tokens / len(rows)
        yield "", [*self.contestants]

    def measure(self, case, key):
        """Feeds for a while, in a process of its own."""
        command = self.program("feed", key, self.work, self.args.seconds)
        with bucket_server.serve(self.work / "bucket", _LATENCY_MS) as url:
            run = self.run(command, {"STORAGE_EMULATOR_HOST": url})
        return {**run, "work": run["work"] * self._tokens_of_row / 1e6}


def _feed(path, decode, shuffle):
    """Yields the rows of each batch of a dataset, without end."""
    from gristmill import loader

    dataset = loader.open(path)
    decode = decode or loader.PackedRows.of(dataset)
    for batch in open_feed(dataset, _BATCH_ROWS, shuffle=shuffle, decode=decode):
        yield len(batch["inputs"] if isinstance(batch, dict) else batch)


def _packed(place, shuffle, work):
    return _feed(f"{place or f'{work}/bucket'}/packed", None, shuffle)


def _bare(work):
    from gristmill import loader

    decode = loader.TokenDecoder(length=LENGTH, stored="uint16")
    return _feed(f"{work}/bare", decode, "global")


def _grain(work):
    """Yields rows of each batch, less their padding, made as by MaxText."""
    import grain
    from tokenizers import Tokenizer

    from gristmill import loader

    tokenizer = Tokenizer.from_file(f"{work}/tokenizer.json")
    text = loader.ExampleDecoder({"text": loader.FixedFeature(bytes)})

    class Tokenize(grain.experimental.FlatMapTransform):
        """Makes pieces of documents: shifted by one token, no longer than a row."""

        max_fan_out = 4096

        def flat_map(self, records):
            pieces = []
            texts = [each.decode() for each in text(records)["text"].tolist()]
            for encoding in tokenizer.encode_batch_fast(texts):
                ids = np.array(encoding.ids, np.int32)
                for begin in range(0, len(ids) - 1, LENGTH):
                    piece = ids[begin : begin + LENGTH + 1]
                    pieces.append({"inputs": piece[:-1], "targets": piece[1:]})
            return pieces

    paths = sorted(map(str, pathlib.Path(work, "texts").glob("*.array_record-*")))
    source = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(paths))
    texts = source.shuffle(seed=1).repeat().batch(64, batch_fn=list)
    pieces = grain.experimental.FlatMapIterDataset(texts.to_iter_dataset(), Tokenize())
    packed = grain.experimental.FirstFitPackIterDataset(
        pieces,
        length_struct={"inputs": LENGTH, "targets": LENGTH},
        num_packing_bins=64,
    )
    for batch in packed.batch(_BATCH_ROWS):
        yield np.count_nonzero(batch["inputs_segment_ids"]) / LENGTH


_FEEDS = {
    "gristmill": functools.partial(_packed, "", "global"),
    "gristmill_block": functools.partial(_packed, "gs://bench", "block"),
    "gristmill_global": functools.partial(_packed, "gs://bench", "global"),
    "bare": _bare,
    "grain": _grain,
}


def feed(key, work, seconds):
    """Measures a feed in rows."""
    rows = _FEEDS[key](work)
    warm = 1 if key == "grain" else _WARM_ROWS
    return steadily(lambda: next(rows), warm=warm, seconds=float(seconds))


if __name__ == "__main__":
    sys.exit(main(Feed))
