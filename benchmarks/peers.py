"""Programs that run in environments of their own, without gristmill.

    PYTHON -m benchmarks.peers NAME ARGUMENT...

Each imports what it uses, and prints what it measured itself as JSON.
"""

import itertools
import json
import os
import random
import sys

from benchmarks.cost import steadily, timed
from benchmarks.frames import read_frames

_BATCH = 256
_WARM_RECORDS = 8 * _BATCH


def pack_datatrove(tokenizer, source, output):
    """Writes the tokens of JSON lines; documents stay in order, which is less work."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    write = DocumentTokenizer(
        f"{output}/tokens",
        tokenizer_name_or_path=tokenizer,
        eos_token=None,
        shuffle_documents=False,
        save_filename="c4",
    )
    LocalPipelineExecutor(
        pipeline=[JsonlReader(source, glob_pattern="*.jsonl"), write],
        tasks=len(os.listdir(source)),
        workers=2,
        logging_dir=f"{output}/logs",
    ).run()


def mds_write(compression, output, *inputs):
    """Writes the records of TFRecord files, as they are, to shards of 64 MiB.

    Compressed shards have a hash, as nothing else would show that one was damaged.
    """
    from streaming import MDSWriter

    how = {"compression": compression, "hashes": ["xxh64"]} if compression else {}

    def write_all():
        with MDSWriter(columns={"record": "bytes"}, out=output, **how) as writer:
            for path in inputs:
                for record in read_frames(path):
                    writer.write({"record": record})

    return timed(write_all)


def mds_read(directory, seconds):
    """Reads shards for a whole epoch in its own shuffle; or at random, some seconds.

    For less than an epoch its threads would have looked up more than was asked for: by
    default they go 256 batches ahead. They take a lock for each record, and wait for
    each other if they run on several processors: so it is bound to one.
    """
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    dataset = StreamingDataset(local=directory, shuffle=True, batch_size=_BATCH)

    def at_random():
        chance = random.Random(0)
        while True:
            for number in chance.sample(range(len(dataset)), len(dataset)):
                yield dataset[number]

    samples = at_random() if seconds else iter(dataset)

    def step():
        batch = [each["record"] for each in itertools.islice(samples, _BATCH)]
        return len(batch) / 1000

    if seconds:
        return steadily(step, warm=_WARM_RECORDS / 1000, seconds=float(seconds))
    for _ in range(_WARM_RECORDS // _BATCH):
        step()
    return timed(lambda: sum(iter(step, 0)))


if __name__ == "__main__":
    program = globals()[sys.argv[1]]
    print(json.dumps(program(*sys.argv[2:]) or {}), flush=True)
