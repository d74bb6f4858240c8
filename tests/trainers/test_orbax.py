"""Model and feed in one checkpoint of Orbax, and back on other hosts and workers."""

import grain
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1 as ocp_v1

from gristmill import loader
from tests.feed.jax_arrays import sharding
from tests.support.datasets import convert
from tests.support.records import text_records

LENGTH, STEPS = 16, 6


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    files = [
        [record.ljust(LENGTH)[:LENGTH] for record in text_records(40, seed=seed)]
        for seed in (1, 2)
    ]
    dataset = loader.open(convert(tmp_path_factory.mktemp("data"), files))
    return loader.global_batches(dataset, batch_size=24, seed=3)


DECODE = loader.TokenDecoder(length=LENGTH, stored="uint8")


ROWS, OTHER_MESH = sharding("data", data=8), sharding("data", data=4, model=2)


def arrays_of(batches, *, rows=ROWS, ahead=2, **options):
    feed = batches.feed(decode=DECODE, host=(0, 1), **options)
    return loader.to_jax(feed, rows, ahead=ahead)


@jax.jit
def trained(model, batch):
    """A model that has seen everything: any other batch would leave another one."""
    return {"w": model["w"] * 3 + batch.sum(axis=0), "steps": model["steps"] + 1}


def new_model(rows=ROWS):
    replicated = NamedSharding(rows.mesh, PartitionSpec())
    return jax.device_put({"w": jnp.zeros(LENGTH), "steps": jnp.int32(0)}, replicated)


@pytest.mark.slow
@pytest.mark.parametrize(("step", "workers"), [(2, 1), (4, 0)])
def test_model_and_feed_go_on_together(batches, tmp_path, step, workers):
    """A run that is not interrupted, and one on another mesh after a checkpoint."""
    model, seen = new_model(), []
    with (
        arrays_of(batches, workers=2) as feed,
        ocp.CheckpointManager(tmp_path) as manager,
    ):
        for number in range(1, STEPS + 1):
            seen.append(next(feed))
            model = trained(model, seen[-1])
            if number == step:  # The feed has read further.
                both = ocp.args.Composite(
                    model=ocp.args.StandardSave(model),
                    feed=ocp.args.JsonSave(feed.get_state()),
                )
                manager.save(step, args=both)
                manager.wait_until_finished()
    # Arrays stay what they are when the workers are gone, whose memory they may share.
    for number, batch in enumerate(seen):
        np.testing.assert_array_equal(batch, DECODE(batches.read(number)))
    with ocp.CheckpointManager(tmp_path) as manager:
        empty = ocp.args.StandardRestore(new_model(OTHER_MESH))
        both = ocp.args.Composite(model=empty, feed=ocp.args.JsonRestore())
        found = manager.restore(step, args=both)
    later = found["model"]
    with arrays_of(batches, workers=workers, rows=OTHER_MESH) as feed:
        feed.set_state(found["feed"])
        for expected in seen[step:]:
            batch = next(feed)
            np.testing.assert_array_equal(batch, expected)
            later = trained(later, batch)
    jax.tree.map(np.testing.assert_array_equal, later, model)


def save_grain(path, feed):
    with ocp.Checkpointer(grain.checkpoint.CheckpointHandler()) as checkpointer:
        checkpointer.save(path, args=grain.checkpoint.CheckpointSave(feed))


def load_grain(path, feed):
    with ocp.Checkpointer(grain.checkpoint.CheckpointHandler()) as checkpointer:
        checkpointer.restore(path, args=grain.checkpoint.CheckpointRestore(feed))


def save_v1(path, feed):
    ocp_v1.save_checkpointables(path, {"model": {"w": jnp.ones(8)}, "feed": feed})


def load_v1(path, feed):
    ocp_v1.load_checkpointables(path, {"feed": feed})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("save", "load"), [(save_grain, load_grain), (save_v1, load_v1)]
)
def test_every_handler_saves_the_step_of_the_caller(batches, tmp_path, save, load):
    with arrays_of(batches, ahead=3) as feed:
        for _ in range(3):
            next(feed)
        save(tmp_path / "checkpoint", feed)
        state = feed.get_state()
    with arrays_of(batches, ahead=3) as feed:
        next(feed)
        load(tmp_path / "checkpoint", feed)
        assert feed.get_state() == state
        np.testing.assert_array_equal(next(feed), DECODE(batches.read(3)))
