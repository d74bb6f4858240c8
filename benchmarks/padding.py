"""Padding and cuts of rows: `gristmill pack` beside Grain."""

import sys

import numpy as np

from benchmarks.contest import Contest, Contestant, gristmill, main, split_in

_LENGTH = 2048
_VOCABULARY = 32_768
# Mean and spread (sigma) of lengths of documents, lognormal.
_CASES = {"mean 458 tokens, as C4": (458, 1.03), "mean 500 tokens, wider": (500, 1.5)}


class Padding(Contest):
    """Padding and cuts of packed rows.

    Documents of made-up lengths become rows of 2,048 tokens. Concatenating cuts
    most documents that need not be cut; one document a row is mostly padding, and
    loses the rest. Best fit over a whole shard has as little padding as
    concatenation, and cuts only documents longer than a row. gristmill reads and
    writes files; Grain packs what is in memory, with 64 open rows.
    """

    name = "padding"
    unit = "thousand documents"
    reference = ("gristmill_best-fit",)
    contestants = {
        "gristmill_best-fit": Contestant("`gristmill pack`"),
        "gristmill_concat": Contestant("`gristmill pack --pack concat`"),
        "gristmill_none": Contestant("`gristmill pack --pack none`"),
        "FirstFit": Contestant("Grain, first fit"),
        "BestFit": Contestant("Grain, best fit"),
    }
    columns = {"padding": "padding, %", "cut": "cuts, of 100 documents"}
    options = {"documents": (20_000, 500, "of each case")}
    packages = ("grain", "numpy")

    def cases(self):
        """Writes the documents."""
        from gristmill.dataset import Writer, encode_example

        for case in _CASES:
            chance = np.random.default_rng(1)
            with Writer(self.fresh("in"), shard_bytes=1 << 30) as writer:
                for length in lengths_of(case, self.args.documents).tolist():
                    tokens = chance.integers(0, _VOCABULARY, length)
                    writer.write(encode_example({"tokens": tokens}))
            yield case, [*self.contestants]

    def measure(self, case, key):
        """Packs once."""
        name, _, method = key.partition("_")
        done = {"work": self.args.documents / 1000}
        if name != "gristmill":
            command = self.program("grain_packer", name, case, self.args.documents)
            return self.run(command) | done
        output = self.fresh()
        command = gristmill(
            "pack",
            self.work / "in",
            output,
            "--column=tokens",
            f"--vocabulary-size={_VOCABULARY}",
            f"--length={_LENGTH}",
            f"--pack={method}",
            "--num-shards=1",
        )
        run = self.run(command)
        split = split_in(output)
        packed = split["packed"]
        found = _found(
            split["records"], packed["tokens"], packed["pieces"], packed["documents"]
        )
        return run | done | found


def _found(rows, tokens, pieces, documents):
    return {
        "padding": 100 * (1 - tokens / rows / _LENGTH),
        "cut": 100 * (pieces - documents) / documents,
    }


def lengths_of(case, documents):
    """Returns the lengths of made-up documents, each at least 2."""
    mean, sigma = _CASES[case]
    chance = np.random.default_rng(0)
    lengths = chance.lognormal(np.log(mean) - sigma**2 / 2, sigma, documents)
    return np.maximum(lengths, 2).astype(np.int64)


def grain_packer(packer, case, documents):
    """Packs pieces no longer than a row, and returns the padding."""
    import grain

    lengths = lengths_of(case, int(documents)).tolist()
    pieces = [
        min(_LENGTH, length - begin)
        for length in lengths
        for begin in range(0, length, _LENGTH)
    ]
    tokens = np.arange(_LENGTH, dtype=np.int32)
    source = grain.MapDataset.source(range(len(pieces)))
    given = source.map(lambda n: {"tokens": tokens[: pieces[n]]}).to_iter_dataset()
    pack = getattr(grain.experimental, f"{packer}PackIterDataset")
    rows = sum(
        1 for _ in pack(given, length_struct={"tokens": _LENGTH}, num_packing_bins=64)
    )
    return _found(rows, sum(pieces), len(pieces), len(lengths))


if __name__ == "__main__":
    sys.exit(main(Padding))
