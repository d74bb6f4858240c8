"""JAX in the tests of the loader has eight devices, all of them this CPU."""

import os

# Before JAX makes its devices, and for the processes that tests start.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
