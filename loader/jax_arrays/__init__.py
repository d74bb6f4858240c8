"""Batches as global `jax.Array`s."""
