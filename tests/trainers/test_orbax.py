"""The state of a feed in checkpoints of Orbax, by Grain's handler and by itself."""

import grain
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint import v1 as ocp_v1

from gristmill import loader
from tests.feed.jax_arrays import sharding
from tests.support.datasets import convert
from tests.support.records import text_records

LENGTH = 16
DECODE = loader.TokenDecoder(length=LENGTH, stored="uint8")


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    records = [record.ljust(LENGTH)[:LENGTH] for record in text_records(80)]
    dataset = loader.open(convert(tmp_path_factory.mktemp("data"), [records]))
    return loader.global_batches(dataset, batch_size=24, seed=3)


def save_json(path, feed):
    with ocp.CheckpointManager(path) as manager:
        model = ocp.args.StandardSave({"w": jnp.ones(8)})
        state = ocp.args.JsonSave(feed.get_state())
        manager.save(3, args=ocp.args.Composite(model=model, feed=state))


def load_json(path, feed):
    with ocp.CheckpointManager(path) as manager:
        both = ocp.args.Composite(feed=ocp.args.JsonRestore())
        feed.set_state(manager.restore(3, args=both)["feed"])


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
    ("save", "load"),
    [(save_json, load_json), (save_grain, load_grain), (save_v1, load_v1)],
)
def test_every_handler_saves_the_step_of_the_caller(batches, tmp_path, save, load):
    """Which goes on with other workers, on another mesh."""

    def arrays_on(rows, workers):
        feed = batches.feed(decode=DECODE, host=(0, 1), workers=workers)
        return loader.to_jax(feed, rows, ahead=3)

    with arrays_on(sharding("data", data=8), workers=1) as feed:
        seen = [next(feed) for _ in range(3)]
        save(tmp_path / "checkpoint", feed)
        state = feed.get_state()
    # Arrays stay what they are when the workers are gone, whose memory they may share.
    for step, batch in enumerate(seen):
        np.testing.assert_array_equal(batch, DECODE(batches.read(step)))
    with arrays_on(sharding("data", data=4, model=2), workers=0) as feed:
        next(feed)
        load(tmp_path / "checkpoint", feed)
        assert feed.get_state() == state
        np.testing.assert_array_equal(next(feed), DECODE(batches.read(3)))
