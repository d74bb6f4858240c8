"""Levanter's DataLoader has the rows of every step, on any devices, from any step."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import numpy as np
from jax.sharding import Mesh
from levanter.data.loader import DataLoader

from examples.levanter_rows import LevanterRows
from gristmill import loader

dataset = loader.open("data/rows")
decode = loader.PackedRows.of(dataset)
for epochs in (None, 1):
    batches = loader.global_batches(dataset, batch_size=8, seed=3, epochs=epochs)
    rows = LevanterRows(batches)
    for devices in (4, 2):
        data = DataLoader(
            rows,
            8,
            mesh=Mesh(np.array(jax.devices()[:devices]), ("data",)),
            axis_resources={"batch": "data"},
            fetch_batch_size=2,
            max_buffered_batches=4,
        )
        for first in (0, 7):
            found = data.iter_from_step(first)
            for step in range(first, first + 3):
                got, expected = next(found), decode(batches.read(step))
                assert got.tokens.axes[1].name == "position"
                np.testing.assert_array_equal(got.tokens.array, expected["inputs"])
                np.testing.assert_array_equal(
                    got.loss_weight.array, expected["targets_segmentation"] > 0
                )
                np.testing.assert_array_equal(
                    got.attn_mask.segment_ids[0].array, expected["inputs_segmentation"]
                )
            found.close()
