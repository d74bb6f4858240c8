"""Removing records from a dataset: planned, done shard by shard, and committed."""
