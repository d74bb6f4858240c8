import pathlib

import grain
import pytest

from gristmill import loader
from gristmill.dataset.errors import InputError
from tests.support.datasets import convert
from tests.support.records import text_records

RECORDS = text_records(53, seed=1)


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    dataset = pathlib.Path(convert(tmp_path_factory.mktemp("data"), [RECORDS]))
    [shard] = dataset.glob("*.array_record-*")
    return str(shard)


@pytest.fixture
def sizes(monkeypatch) -> list[int]:
    """How many records the source is asked for at a time."""
    asked: list[int] = []
    read = loader.ArrayRecordDataSource.__getitems__

    def counted(self, keys):
        asked.append(len(keys))
        return read(self, keys)

    monkeypatch.setattr(loader.ArrayRecordDataSource, "__getitems__", counted)
    return asked


def datasets(source):
    records = grain.MapDataset.source(source)
    yield records
    yield records.shuffle(seed=3).repeat(2)[1::3]
    yield records.shuffle(seed=3).map(len).filter(lambda size: size % 2 == 0)
    yield grain.MapDataset.mix([records.shuffle(seed=1), records[:9]], [0.7, 0.3])


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("records", [1, 7, 64])
def test_elements_are_those_of_grain_in_its_order(path, sizes, number, records):
    theirs = list(datasets(grain.sources.ArrayRecordDataSource(path)))[number]
    ours = list(datasets(loader.ArrayRecordDataSource(path)))[number]
    assert list(loader.read_together(ours, records=records)) == list(
        theirs.to_iter_dataset()
    )
    asked = sum(sizes)
    assert len(sizes) <= 2 * -(-asked // records)  # a mixture reads from two
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


def test_no_records_at_a_time_are_refused(path):
    source = grain.MapDataset.source(loader.ArrayRecordDataSource(path))
    with pytest.raises(InputError, match="records"):
        loader.read_together(source, records=0)
