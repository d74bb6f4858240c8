"""Which record is in which row: by plain arithmetic, by a simulation, by statistics."""

import collections
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import chdtrc

from gristmill import loader
from gristmill.dataset import FormatVersionError, InputError, OutOfRangeError
from gristmill.loader import BlockShuffle
from gristmill.loader.base.indices import POSITION_LIMIT
from gristmill.loader.data.dataset import Content, GoneDataset
from gristmill.loader.order.mixture import Mixture, exact_weights
from gristmill.loader.order.permutation import Permutation
from gristmill.loader.order.schedule import DatasetOrder, Phase, Schedule, Sighting
from gristmill.loader.order.shuffle import GlobalShuffle, NoShuffle, shuffle_from_state
from tests.conformance import plain_order
from tests.order.schedules import bounds_of, schedule_of

# 2^k + 1 with even k is where shuffles that round the domain to even bits fail.
SIZES = st.one_of(
    st.integers(1, 300),
    st.integers(1, 1 << 62),
    st.builds(
        lambda k, d: min(max((1 << k) + d, 1), 1 << 62),
        st.integers(0, 62),
        st.integers(-1, 1),
    ),
)
SHUFFLES = st.one_of(
    st.just(NoShuffle()),
    st.just(GlobalShuffle()),
    st.builds(
        BlockShuffle, block_records=st.integers(1, 99), window_blocks=st.integers(1, 9)
    ),
)
# Heavy ones leave int64 on the way.
WEIGHTS = st.sampled_from([12, 1 << 40, 10**18]).flatmap(
    lambda most: st.lists(st.integers(0, most), min_size=4, max_size=7)
)
# Weights that make the bound of Huffman's tree as bad as it gets.
FIBONACCI = [Fraction(1, 1000), 1, 1, 1, 2, 3, 5, 8, 13, 21]


def plain(order):
    shuffle = dict(order.shuffle.to_state())
    return plain_order.Dataset(order.name, order.num_records, order.seed, shuffle)


@given(data=st.data(), seed=st.integers(), shuffle=SHUFFLES)
@settings(max_examples=120)
def test_any_row_is_that_of_plain_integers_and_is_found(data, seed, shuffle):
    texts = st.lists(st.text(max_size=5), min_size=1, max_size=4, unique=True)
    names, weights = data.draw(texts), data.draw(WEIGHTS)
    weights = [weights[0] + 1, *weights[1 : len(names)]]
    alike = {"seed": seed, "shuffle": shuffle}
    orders = tuple(
        DatasetOrder(num_records=data.draw(SIZES), name=name, **alike) for name in names
    )
    batch_size = data.draw(st.sampled_from([1, 3, 1000]))
    mixture = Mixture.of(weights)
    schedule = schedule_of(orders=orders, mixture=mixture, batch_size=batch_size)
    limit = schedule.step_limit
    step = data.draw(st.integers(0, limit - 1) | st.integers(-9, 9)) % limit
    datasets, records = schedule.batch(step)
    assert (datasets.dtype, records.dtype) == (np.int64, np.int64)
    for row in {0, batch_size // 2, batch_size - 1}:
        position = step * batch_size + row
        which, place = plain_order.dealt(weights, position)
        record = plain(orders[which]).record(place)
        assert (datasets[row], records[row]) == (which, record)
        epoch = schedule.epoch_at(position)
        assert epoch == place // orders[which].num_records
        epochs = {"first_epoch": epoch, "stop_epoch": epoch + 1}
        found = schedule.find(record, dataset=which, **epochs)
        assert found == [Sighting(epoch, step, row)]
    with pytest.raises(OutOfRangeError, match="no such step"):
        schedule.batch(limit)


def p_value(counts):
    """Of the chi-square test that all cells are equally likely."""
    expected = counts.sum() / counts.size
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return float(chdtrc(counts.size - 1, statistic))


def permuted(size, count, *, epochs=1, seed):
    shape = epochs, count
    places = np.broadcast_to(np.arange(count), shape)
    epoch = np.broadcast_to(np.arange(epochs)[:, None], shape)
    lane = np.zeros(1, np.int64)
    order = Permutation(size, seed=seed)
    return order.map(places, epoch=epoch, lane=lane, inverse=False)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_all_orders_of_a_few_records_are_equally_likely(size):
    count = 15_000 * size
    drawn, number = permuted(size, size, epochs=count, seed=7), np.zeros(count, int)
    for i in range(size):  # Lehmer's code
        number = number * (size - i) + (drawn[:, i + 1 :] < drawn[:, i : i + 1]).sum(1)
    assert p_value(np.bincount(number, minlength=math.factorial(size))) > 1e-4


@pytest.mark.parametrize("size", [65_537, 10**6, 10**12, POSITION_LIMIT])
def test_places_and_neighbours_are_uniform_in_one_order(size):
    count, cells = min(size, 200_000), 64
    mapped = permuted(size, count, seed=11)[0].astype(float)
    # Of a whole order every cell is full.
    half = mapped[: size // 2]
    shares = [half / size]
    for distance in (1, 2, 256):
        shares.append((mapped[distance:] - mapped[:-distance]) % size / size)
        correlation = np.corrcoef(mapped[distance:], mapped[:-distance])[0, 1]
        assert abs(correlation) < 5 / math.sqrt(count)
    for share in shares:
        found = np.bincount((share * cells).astype(int), minlength=cells)
        assert p_value(found) > 1e-5


@given(weights=WEIGHTS.filter(any))
@example(weights=FIBONACCI)
@example(weights=[(1 << 40) + 1, 1 << 39, 5])
@example(weights=[1] * 64)
@example(weights=[1, 2, 5])
@example(weights=[4, 3])
def test_every_prefix_and_every_window_keep_the_weights(weights):
    mixture, stop = Mixture.of(weights), 300
    datasets, _ = mixture.locate(np.arange(stop))
    picked = datasets[:, None] == np.arange(len(weights))
    counts = np.vstack([np.zeros(len(weights), int), np.cumsum(picked, axis=0)])
    period = math.lcm(*(weight.denominator for weight in mixture.weights))
    for dataset, (weight, bound) in enumerate(
        zip(mixture.weights, bounds_of(mixture), strict=True)
    ):
        most = {1: Fraction(0), 2: Fraction(1, 2), 3: Fraction(1)}
        assert bound <= most.get(len(weights), Fraction(168, 100))
        own = counts[:, dataset].tolist()
        off = [count - place * weight for place, count in enumerate(own)]
        assert max(map(abs, off)) <= bound
        # off[q] - off[p] is the error of the window [p, q): the worst of them all.
        assert max(off) - min(off) <= 2 * bound
        if len(weights) == 2:
            assert max(off) - min(off) < 1  # Every window is rounded up or down.
        assert off[period:] == off[: max(stop + 1 - period, 0)]


STEPS = 40


@st.composite
def runs(draw):
    """Returns a schedule of some phases, and the phases as they were given."""
    mixed = draw(st.booleans())
    names = ["a", "b", "c"][: draw(st.integers(1, 3))] if mixed else [""]
    alike = {
        "seed": draw(st.integers(-2, 2**70)),
        "shuffle": draw(SHUFFLES),
        "epochs": draw(st.one_of(st.none(), st.integers(20, 30))),
    }
    given = []
    for step in [0, *sorted(draw(st.sets(st.integers(1, 25), max_size=3)))]:
        first = len(given) * len(names)
        records = {name: draw(st.integers(1, 25)) for name in names}
        weights = [draw(st.integers(1, 5)) for _ in names]
        phase = Phase(
            step=step,
            orders=tuple(
                DatasetOrder(num_records=count, name=name, **alike)
                for name, count in records.items()
            ),
            numbers=tuple(range(first, first + len(names))),
            mixture=Mixture.of(weights) if mixed else None,
            batch_size=draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12])),
        )
        given.append(phase)
    schedule = Schedule(phases=(given[0],), drop_remainder=draw(st.booleans()))
    for number, phase in enumerate(given[1:], 1):
        try:
            schedule = schedule.then(phase)
        except InputError:  # The batches end before.
            return schedule, given[:number]
    return schedule, given


def simulated(phases):
    """Returns dataset, epoch and record of each row of the first steps."""
    # The epochs of each dataset before a phase: those begun, and those seen whole.
    begun, whole = collections.Counter(), collections.Counter()
    batches = []
    for phase, following in itertools.zip_longest(phases, phases[1:]):
        seen, positions = collections.Counter(), itertools.count()
        for _ in range(phase.step, following.step if following else STEPS):
            batches.append([])
            for _ in range(phase.batch_size):
                which, place = plain_order.dealt(phase.dealing.weights, next(positions))
                order = phase.orders[which]
                epoch, place_in_epoch = divmod(place, order.num_records)
                if whole[order.name] + epoch == order.epochs:
                    return batches
                epoch += begun[order.name]
                first = epoch * order.num_records
                record = plain(order).record(first + place_in_epoch)
                batches[-1].append((phase.numbers[which], epoch, record))
                seen[order.name] += 1
        for order in phase.orders:
            whole[order.name] += seen[order.name] // order.num_records
            begun[order.name] -= -seen[order.name] // order.num_records
    return batches


@given(run=runs(), hosts=st.integers(1, 4))
@settings(max_examples=40)
def test_any_phases_are_what_a_simulation_gives(run, hosts):
    schedule, phases = run
    batches = simulated(phases)
    if schedule.steps is not None:
        full = schedule.batch_size(len(batches) - 1)
        if not batches[-1] or (schedule.drop_remainder and len(batches[-1]) < full):
            batches.pop()
        assert min(schedule.steps, STEPS) == len(batches)
    seen = collections.defaultdict(list)
    passed = collections.Counter()
    for step, batch in enumerate(batches):
        counts = collections.Counter()
        for number, _, places in schedule.passed(schedule.start(step)):
            counts[number] += places
        assert +counts == passed
        for row, (number, epoch, record) in enumerate(batch):
            seen[number, record].append(Sighting(epoch, step, row))
            passed[number] += 1
            assert schedule.epoch_at(schedule.start(step) + row) == epoch
        found = schedule.batch(step)
        wanted = [(number, record) for number, _, record in batch]
        assert list(zip(*map(np.ndarray.tolist, found), strict=True)) == wanted
        if len(batch) == schedule.batch_size(step) and len(batch) % hosts == 0:
            parts = [
                schedule.host_rows(host=(host, hosts), step=step)
                for host in range(hosts)
            ]
            records = [schedule.batch(step, part).records for part in parts]
            assert np.concatenate(records).tolist() == found.records.tolist()
    for phase in phases:
        for number, order in zip(phase.numbers, phase.orders, strict=True):
            for record in range(order.num_records):
                found = schedule.find(record, dataset=number, stop_epoch=60)
                within = [one for one in found if one.step < len(batches)]
                assert within == [one for one in seen[number, record] if one.epoch < 60]


@pytest.mark.parametrize(("step", "end"), [(0, 0), (1, 3), (2, 3), (3, 5), (5, 5)])
def test_an_epoch_ends_with_the_first_step_that_begins_after_it(step, end):
    schedule = schedule_of(orders=(DatasetOrder(num_records=10),), batch_size=4)
    assert schedule.end_of_epoch("", step=step) == end


def test_an_epoch_that_does_not_end_ends_with_all_steps():
    orders = tuple(DatasetOrder(num_records=9, name=name, epochs=2) for name in "ab")
    schedule = schedule_of(orders=orders, mixture=Mixture.of([1, 0]), batch_size=4)
    assert schedule.end_of_epoch("b", step=1) == 1  # None has begun.
    assert schedule.end_of_epoch("a", step=3) == schedule.step_limit


def test_weights_mean_what_they_say():
    tenth = Fraction(1, 10)
    assert exact_weights([0.1, "0.2", np.float64(0.7)]) == (tenth, tenth * 2, tenth * 7)
    assert exact_weights([np.int64(1), Fraction(2)]) == exact_weights(["1/3", "2/3"])
    for bad in ([], [0, 0], [1, -1], [2, -1]):
        with pytest.raises(InputError, match="cannot make a mixture"):
            Mixture.of(bad)
    for bad in ("a", "1/0", float("nan"), float("inf"), None):
        with pytest.raises(InputError, match="not a number"):
            Mixture.of([1, bad])


def test_orders_of_another_version_are_refused():
    for read, state in (
        (shuffle_from_state, GlobalShuffle().to_state() | {"permutation_version": 2}),
        (shuffle_from_state, BlockShuffle().to_state() | {"permutation_version": 2}),
        (shuffle_from_state, BlockShuffle().to_state() | {"version": 2}),
        (Mixture.from_state, Mixture.of([1, 1]).to_state() | {"version": 7}),
    ):
        with pytest.raises(FormatVersionError):
            read(state)


def numbers_only(count):
    """A dataset of which only the length matters."""
    return GoneDataset("nowhere", Content(None, count, None, ""))


@given(data=st.data())
@settings(max_examples=30)
def test_tokens_are_those_of_the_rows_of_the_steps(data):
    draw, weight = data.draw, st.integers(1, 9)
    names = [str(number) for number in range(draw(st.integers(1, 3)))]
    # All rows of a dataset are alike, so that mean rows are the rows themselves.
    each = {name: draw(st.integers(1, 2048)) for name in names}

    def drawn():
        sizes = {name: draw(st.integers(1, 30)) for name in names}
        return {
            "datasets": {name: numbers_only(size) for name, size in sizes.items()},
            "weights": {name: draw(weight) for name in names},
            "batch_size": draw(weight),
        }

    batches = loader.global_batches(**drawn())
    batches = batches.then(**drawn(), step=draw(st.integers(1, 12)))
    steps, seen = draw(st.integers(0, 20)), np.zeros(2 * len(names), int)
    for step in range(steps):
        np.add.at(seen, batches.indices(step).datasets, 1)
    tokens = [n * each[name] for n, name in zip(seen, batches.names, strict=True)]
    found = loader.token_run(batches, steps=steps, tokens_per_row=each)
    assert (found.rows, [*found.tokens_of]) == (seen.sum(), tokens)
    assert found.tokens == sum(tokens)
    assert loader.token_run(batches, tokens=sum(tokens), tokens_per_row=each) == found
    if steps:
        more = loader.token_run(batches, tokens=sum(tokens) + 1, tokens_per_row=each)
        assert more.steps == steps + 1
