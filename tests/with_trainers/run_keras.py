"""A `fit` of Keras that is resumed sees the steps that follow, and ends the same."""

import contextlib
import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

from examples.keras_batches import KerasBatches
from gristmill import loader

dataset = loader.open("data/demo")
batches = loader.global_batches(dataset, batch_size=8, seed=3, epochs=None)
decoder = loader.ExampleDecoder({"id": loader.FixedFeature("int32")})
seen = []


def decode(taken):
    ids = decoder(taken)["id"]
    seen.append(ids.tolist())
    scaled = (ids[:, None] / 4000).astype(np.float32)
    return scaled, 2 * scaled + 1


class Stops(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt


def data_of(index=0, count=1):
    return KerasBatches(
        batches, steps_per_epoch=5, decode=decode, host=(index, count), prefetch=1
    )


def train(backup, epochs, *more):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    data = data_of()
    kept = keras.callbacks.BackupAndRestore(backup)
    model.fit(
        data,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[kept, data.follow(), *more],
    )
    data.close()
    return np.concatenate([each.ravel() for each in model.get_weights()])


assert keras.backend.backend() == "jax"
whole = train("whole", 4)
# Keras looks at the first batch, to build the model, before it trains; the feed reads
# ahead.
steps = [decoder(batches.read(step))["id"].tolist() for step in range(30)]
assert {*map(tuple, seen)} >= {*map(tuple, steps[:20])}
with contextlib.suppress(KeyboardInterrupt):
    train("parts", 4, Stops())
seen.clear()
np.testing.assert_array_equal(train("parts", 4), whole)
read = {*map(tuple, seen)}
assert read >= {*map(tuple, steps[10:20])}
assert not read & {*map(tuple, steps[5:10])}
halves = [data_of(index, 2) for index in range(2)]
rows = [half[2][0][:, 0].tolist() for half in halves]
assert rows[0] + rows[1] == (np.array(steps[2]) / 4000).astype("f4").tolist()
for half in halves:
    half.close()
