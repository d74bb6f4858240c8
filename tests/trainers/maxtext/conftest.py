"""MaxText as a stand-in, and data for it."""

import sys

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from gristmill.loader.maxtext import install
from tests.rows.packed_shards import conversations, supervised_dataset
from tests.support.datasets import convert
from tests.support.packed import documents, pack
from tests.trainers.maxtext import maxtext as stand_in
from tests.trainers.maxtext.maxtext import LENGTH, RECORDS, config_of, record_of

STAND_IN = stand_in.modules()
NAMES = {name: vars(module).copy() for name, module in STAND_IN.items()}


@pytest.fixture
def maxtext(monkeypatch):
    """The stand-in that is imported as MaxText, as it was made; by modules' names."""
    for name, module in STAND_IN.items():
        vars(module).clear()
        vars(module).update(NAMES[name])
        monkeypatch.setitem(sys.modules, name, module)
    return STAND_IN


@pytest.fixture
def make(maxtext):
    """Makes MaxText's iterators of training and evaluation, by gristmill."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "fsdp"))
    interface = maxtext["maxtext.input_pipeline.input_pipeline_interface"]

    def make(options=None, **settings):
        install(**options or {})
        return interface.create_data_iterator(config_of(**settings), mesh)

    return make


@pytest.fixture(scope="session")
def records(tmp_path_factory):
    """A dataset of records with two splits, in two shards and one."""
    folder = tmp_path_factory.mktemp("records")
    numbered = [record_of(number) for number in range(RECORDS)]
    path = convert(folder, [numbered[:20], numbered[20:]])
    assert convert(folder, [numbered[:9]], split="validation") == path
    return path


@pytest.fixture(scope="session")
def others(tmp_path_factory):
    """Another dataset of records."""
    folder = tmp_path_factory.mktemp("others")
    return convert(folder, [[b"other%03d" % number for number in range(40)]])


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    """A dataset of packed rows."""
    folder = tmp_path_factory.mktemp("rows")
    made = [documents(60, seed=1, mean=6), documents(50, seed=2, mean=6)]
    return pack(folder, made, length=LENGTH, method="best-fit")


@pytest.fixture(scope="session")
def long_rows(tmp_path_factory):
    """A dataset of longer packed rows."""
    options = {"length": 2 * LENGTH, "vocabulary_size": 60_000}
    made = [documents(30, seed=3)]
    return pack(tmp_path_factory.mktemp("long_rows"), made, **options)


@pytest.fixture(scope="session")
def chat(tmp_path_factory):
    """A dataset of rows of conversations, of ids as those of `rows`."""
    made = [conversations(40, seed=seed, most=4) for seed in range(2)]
    options = {"length": LENGTH, "vocabulary_size": 1 << 32}
    return supervised_dataset(tmp_path_factory.mktemp("chat") / "rows", made, **options)
