"""The example of Flax resumes on other devices with the losses of a whole run."""

import os
import pathlib
import subprocess
import sys

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "nnx_train.py"


def losses(output, steps, devices=1):
    flags = f"--xla_force_host_platform_device_count={devices}"
    printed = subprocess.run(
        [
            *(sys.executable, EXAMPLE, "--data", "data/rows", "--output", output),
            *("--steps", str(steps), "--batch-size", "8"),
        ],
        env={**os.environ, "XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    return [float(line.split()[3]) for line in printed.splitlines()]


whole = losses("whole", 20)
assert whole[-1] < whole[0]
first, rest = losses("parts", 10), losses("parts", 20, devices=4)
assert first == whole[:10]
assert len(rest) == 10
# Devices add numbers in another order.
assert all(abs(a - b) < 1e-3 for a, b in zip(rest, whole[10:], strict=True))
