"""Columns computed from the records of a dataset, shard by shard."""
