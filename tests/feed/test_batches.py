"""Global batches: which records, on which host, and what is refused."""

import functools
import pickle

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import InputError, OutOfRangeError
from tests.support.datasets import convert
from tests.support.records import text_records

WEB = [text_records(13, seed=1), text_records(24, seed=2)]
CODE = [text_records(11, seed=3)]
RECORDS = {"web": WEB[0] + WEB[1], "code": CODE[0]}


@pytest.fixture(scope="module")
def web(tmp_path_factory) -> loader.Dataset:
    return loader.open(convert(tmp_path_factory.mktemp("web"), WEB))


@pytest.fixture(scope="module")
def code(tmp_path_factory) -> loader.Dataset:
    return loader.open(convert(tmp_path_factory.mktemp("code"), CODE))


def test_rows_of_a_mixture_are_read_from_the_dataset_they_are_of(web, code):
    batches = loader.global_batches(
        {"web": web, "code": code}, batch_size=10, weights={"code": 0.3, "web": 0.7}
    )
    for step in range(12):
        datasets, records = batches.indices(step)
        assert np.bincount(datasets).tolist() == [7, 3]
        expected = [
            RECORDS[batches.names[d]][r] for d, r in zip(datasets, records, strict=True)
        ]
        assert batches.read(step) == expected
        assert batches.read(step, slice(5, 10)) == expected[5:]


@pytest.mark.parametrize("host", [None, "tpu", 0, (0,), (2, 2), (-1, 2), ("0", 2)])
def test_another_host_than_there_is_is_refused(web, host):
    batches = loader.global_batches(web, batch_size=10)
    for made in (batches.feed, batches.records):
        with pytest.raises(InputError, match="host"):
            made(host=host)
    for made in (batches.feed, batches.records):
        with pytest.raises(InputError, match="not said which host") as refused:
            made()
        assert "host=(0, 1)" in refused.value.cure


def test_a_mixture_without_weights_is_in_proportion_to_the_lengths(web, code):
    batches = loader.global_batches({"web": web, "code": code}, batch_size=48, epochs=1)
    assert batches.steps == 1
    assert sorted(batches.read(0)) == sorted(RECORDS["web"] + RECORDS["code"])


def test_batches_pickle_as_paths_and_order(web, code):
    batches = loader.global_batches({"web": web, "code": code}, batch_size=10)
    assert batches.read(3)
    data = pickle.dumps(batches)
    assert len(data) < 2500
    assert pickle.loads(data).read(3) == batches.read(3)


def test_a_batch_that_the_records_do_not_fill_is_refused(web, code):
    with pytest.raises(InputError, match="there is no batch") as refused:
        loader.global_batches(web, batch_size=38, epochs=1)
    assert refused.value.expected.startswith("at least 38 records")
    assert refused.value.got == "37"
    assert "drop_remainder=False" in refused.value.cure
    for fine in (
        {"batch_size": 37, "epochs": 1},
        {"batch_size": 38, "epochs": 2},
        {"batch_size": 38, "epochs": None},
        {"batch_size": 38, "epochs": 1, "drop_remainder": False},
    ):
        batches = loader.global_batches(web, **fine)
        assert len(batches.read(0)) == min(
            37 * (fine["epochs"] or 2), batches.batch_size
        )
    # A mixture ends where its first dataset does.
    mixed = {"web": web, "code": code}
    with pytest.raises(InputError, match="there is no batch"):
        loader.global_batches(
            mixed, batch_size=30, epochs=1, weights={"web": 1, "code": 1}
        )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (lambda web, mixed: loader.global_batches("c4", batch_size=1), "loader.open"),
        (lambda web, mixed: web(shuffle=True), "pass 'global'"),
        (lambda web, mixed: web(shuffle=None), "pass 'none'"),
        (lambda web, mixed: web(shuffle=loader.BlockShuffle), r"pass BlockShuffle\(\)"),
        (lambda web, mixed: web(shuffle="random"), "'none', 'global', 'block', or a"),
        (lambda web, mixed: web(shuffle=["global"]), "one of the names"),
        (lambda web, mixed: web(weights={"web": 1}), "weights are for a mixture"),
        (lambda web, mixed: web().then(weights={}, step=1), "has no weights"),
        (lambda web, mixed: web().locate(2, 10), "row is out of range"),
        (lambda web, mixed: web().locate(3, 0), "no such step"),
        (lambda web, mixed: web().find(1, "web"), "single dataset has no name"),
        (lambda web, mixed: web().read(3), "no such step"),
        (lambda web, mixed: web().read(-1), "0 <= step < 3"),
        (lambda web, mixed: web().read(1.0), "step is not an integer"),
        (lambda web, mixed: web().read(1, np.array([3, 12])), "row is out of range"),
        (lambda web, mixed: web().feed(host=(0, 3)), "does not divide among the hosts"),
        (lambda web, mixed: loader.global_batches({}, batch_size=1), "no datasets"),
        (lambda web, mixed: mixed(weights={}), "a weight for each of web, code"),
        (lambda web, mixed: mixed().then(weights={"web": 1}, step=1), "a weight for"),
        (lambda web, mixed: mixed().find(1), "which dataset of the mixture"),
        (lambda web, mixed: mixed().find(1, "books"), "no such dataset"),
    ],
)
def test_what_cannot_be_is_refused(web, code, asked, message):
    of_web = functools.partial(loader.global_batches, web, batch_size=10, epochs=1)
    both = {"web": web, "code": code}
    with pytest.raises((InputError, OutOfRangeError), match=message):
        asked(of_web, functools.partial(loader.global_batches, both, batch_size=10))


def test_an_empty_dataset_is_refused(tmp_path):
    empty = loader.open(convert(tmp_path, [[]]))
    with pytest.raises(InputError, match="no records"):
        loader.global_batches(empty, batch_size=1)
