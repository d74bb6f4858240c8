import pathlib

import grain
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from tests.support.datasets import convert
from tests.support.records import text_records

RECORDS = text_records(53, seed=1)


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    dataset = pathlib.Path(convert(tmp_path_factory.mktemp("data"), [RECORDS]))
    [shard] = dataset.glob("*.array_record-*")
    return str(shard)


class Counted(loader.ArrayRecordDataSource):
    """A source that notes how many records it is asked for at a time."""

    def __init__(self, path: str):
        super().__init__(path)
        self.sizes: list[int] = []

    def __getitems__(self, record_keys):
        self.sizes.append(len(record_keys))
        return super().__getitems__(record_keys)


def datasets(source):
    records = grain.MapDataset.source(source)
    yield records
    yield records.shuffle(seed=3).repeat(2)[1::3]
    yield records.shuffle(seed=3).map(len).filter(lambda size: size % 2 == 0)
    yield grain.MapDataset.mix([records.shuffle(seed=1), records[:9]], [0.7, 0.3])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("records", [1, 7, 64])
def test_elements_are_those_of_grain_in_its_order(path, number, records):
    theirs = list(datasets(grain.sources.ArrayRecordDataSource(path)))[number]
    source = Counted(path)
    ours = list(datasets(source))[number]
    assert list(loader.read_together(ours, records=records)) == list(
        theirs.to_iter_dataset()
    )
    asked = sum(source.sizes)
    assert len(source.sizes) <= 2 * -(-asked // records)  # a mixture reads from two
    lists = list(loader.in_batches(ours, records=records))
    alone = [element for element in theirs if element is not None]
    assert [element for part in lists for element in part] == alone


def test_epochs_without_end_end_in_lists_of_their_own(path):
    endless = grain.MapDataset.source(loader.ArrayRecordDataSource(path)).repeat()
    lists = loader.in_batches(endless[:120], records=50)
    assert [len(part) for part in lists] == [50, 50, 20]
    once = grain.MapDataset.source(loader.ArrayRecordDataSource(path))
    of_epochs = loader.in_batches(once, records=50).repeat(2)
    assert [len(part) for part in of_epochs] == [50, 3, 50, 3]
    assert [record for part in of_epochs for record in part] == RECORDS * 2


@pytest.mark.slow
def test_the_iterator_resumes_at_every_element(path):
    source = grain.MapDataset.source(loader.ArrayRecordDataSource(path)).shuffle(seed=1)
    dataset = loader.read_together(source, records=8)
    iterator = iter(dataset)
    states, seen = [], []
    for _ in range(20):
        states.append(iterator.get_state())
        seen.append(next(iterator))
    for step, state in enumerate(states):
        resumed = iter(dataset)
        resumed.set_state(state)
        assert [next(resumed) for _ in seen[step : step + 9]] == seen[step : step + 9]


@pytest.mark.parametrize("number", range(4))
def test_a_state_of_grain_is_one_of_ours_and_back(path, number):
    theirs = list(datasets(grain.sources.ArrayRecordDataSource(path)))[number]
    ours = list(datasets(loader.ArrayRecordDataSource(path)))[number]
    of_grain = iter(theirs.to_iter_dataset())
    together = iter(loader.read_together(ours, records=8))
    for element in of_grain:
        assert next(together) == element
        state = of_grain.get_state()
        assert together.get_state() == state
        together.set_state(state)  # From here on, what was read ahead is read again.
    assert list(together) == []
    assert together.get_state() == of_grain.get_state() == {"next_index": len(ours)}
    together.set_state({"next_index": 0})
    assert list(together) == list(theirs.to_iter_dataset())


@pytest.mark.parametrize(
    "state",
    [
        {"parent": {"next_index": 1}, "next_index_in_buffer": 44},
        {"next_index": 54},
        {"next_index": -1},
        {"next_index": 1.5},
        {},
        None,
    ],
)
def test_a_state_of_something_else_is_refused_and_changes_nothing(path, state):
    source = grain.MapDataset.source(loader.ArrayRecordDataSource(path))
    iterator = iter(loader.read_together(source, records=8))
    assert next(iterator) == RECORDS[0]
    with pytest.raises(InputError, match="next_index"):
        iterator.set_state(state)
    assert list(iterator) == RECORDS[1:]


@pytest.mark.parametrize("sequential", [False, True])
def test_workers_have_the_elements_that_grain_gives_them(path, sequential):
    source = grain.MapDataset.source(loader.ArrayRecordDataSource(path))
    for worker in range(3):
        theirs, ours = source.to_iter_dataset(), loader.read_together(source, records=8)
        for dataset in (theirs, ours):
            dataset.set_slice(slice(worker, None, 3), sequential)
        assert list(ours) == list(theirs)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_a_pipeline_goes_on_with_the_other_one_in_worker_processes(path, workers):
    """Both ways: a checkpoint of Grain's pipeline, and one of the faster one."""

    def pipeline(batched: bool):
        source = loader.ArrayRecordDataSource(path)
        records = grain.MapDataset.source(source).shuffle(seed=1).repeat(2)
        elements = (
            loader.read_together(records, records=8)
            if batched
            else records.to_iter_dataset()
        )
        options = grain.MultiprocessingOptions(num_workers=workers)
        return iter(elements.batch(5, batch_fn=list).mp_prefetch(options))

    theirs, ours, after_theirs, after_ours = map(pipeline, (False, True, True, False))
    seen = [next(theirs) for _ in range(7)]
    after_theirs.set_state(theirs.get_state())
    whole = [*seen, *theirs]
    assert seen + list(after_theirs) == whole
    assert [next(ours) for _ in range(7)] == seen
    after_ours.set_state(ours.get_state())
    assert seen + list(after_ours) == whole
    for iterator in (theirs, ours, after_theirs, after_ours):
        iterator.close()
