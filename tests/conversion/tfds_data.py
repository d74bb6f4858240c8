"""A small dataset that tensorflow-datasets itself makes, and what it reads of one."""

import json
import pathlib

import numpy as np

from tests.support.tensorflow_process import with_tensorflow

NAME = "__odd_builder"
LABELS = ("cat", "Hündin", "fish")
# Neither is a multiple of its number of files.
SPLIT_RECORDS = {"train": 23, "validation": 8}
SHARDS = 3


def _examples(split, count):
    chance = np.random.default_rng(len(split))
    return [
        {
            "text": f"{split} Nº {number} " + "x" * int(chance.integers(300)),
            "label": number % len(LABELS),
            "numbers": chance.integers(-(2**60), 2**60, 3),
            "image": chance.integers(0, 256, (4, 5, 3), dtype=np.uint8),
            "tags": ["a", "", "ß"][: number % 4],
        }
        for number in range(count)
    ]


@with_tensorflow
def make_tfds(directory):
    """Lets TFDS prepare a dataset, and returns the directory that holds its files."""
    import tensorflow_datasets as tfds

    # Examples of every kind that TFDS stores in its own way.
    features = {
        "text": tfds.features.Text(),
        "label": tfds.features.ClassLabel(names=list(LABELS)),
        "numbers": tfds.features.Tensor(shape=(3,), dtype=np.int64),
        "image": tfds.features.Image(shape=(4, 5, 3)),
        "tags": tfds.features.Sequence(tfds.features.Text()),
    }
    builder = tfds.dataset_builders.store_as_tfds_dataset(
        name=NAME,
        version="1.2.3",
        features=tfds.features.FeaturesDict(features),
        split_datasets={
            split: [*enumerate(_examples(split, count))]
            for split, count in SPLIT_RECORDS.items()
        },
        data_dir=directory,
        description='Grüße, with a "quote".',
        homepage="https://example.org/",
        download_config=tfds.download.DownloadConfig(num_shards=SHARDS),
    )
    made = pathlib.Path(builder.data_dir)
    # What the class of a builder adds.
    (made / "metadata.json").write_text('{"made_by": "hand"}')
    (made / "LICENSE").write_text("nobody's")
    return made


@with_tensorflow
def read_in_order(directory, split):
    """Reads the examples of a TFRecord dataset with TFDS, file by file."""
    import tensorflow_datasets as tfds

    examples = tfds.builder_from_directory(directory).as_dataset(
        split=split, read_config=tfds.ReadConfig(interleave_cycle_length=1)
    )
    return [plain(example) for example in tfds.as_numpy(examples)]


@with_tensorflow
def read_splits(directory):
    """Reads the examples of all splits of an ArrayRecord dataset with TFDS."""
    import tensorflow_datasets as tfds

    splits = tfds.builder_from_directory(directory).as_data_source()
    return {
        split: [plain(source[index]) for index in range(len(source))]
        for split, source in splits.items()
    }


@with_tensorflow
def read_info(directory):
    """Returns what TFDS says of a dataset."""
    import tensorflow_datasets as tfds

    info = tfds.builder_from_directory(directory).info
    fields = ("name", "description", "homepage")
    return {
        **{field: getattr(info, field) for field in fields},
        "version": str(info.version),
        "labels": info.features["label"].names,
        "metadata": dict(info.metadata),
        "splits": {
            name: (split.num_examples, split.num_bytes)
            for name, split in info.splits.items()
        },
        "file_format": info.file_format.value,
        "files": {
            name: [str(path) for path in split.filepaths]
            for name, split in info.splits.items()
        },
    }


def edit_info(directory, **fields):
    """Sets fields of `dataset_info.json`, None to remove one; returns all of them."""
    path = directory / "dataset_info.json"
    info = json.loads(path.read_text()) | fields
    info = {name: value for name, value in info.items() if value is not None}
    path.write_text(json.dumps(info))
    return info


def plain(example):
    """Makes values comparable with ==, whether they come from TensorFlow or NumPy."""
    if isinstance(example, dict):
        return {name: plain(value) for name, value in sorted(example.items())}
    value = np.asarray(example)
    if not value.size:
        return []  # Without elements, a data source has forgotten their type.
    if value.dtype == object or value.dtype.kind in "SU":
        texts = np.ravel(value).tolist()
        return [text if isinstance(text, bytes) else text.encode() for text in texts]
    return [str(value.dtype), value.tolist()]
