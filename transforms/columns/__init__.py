"""Columns that a function computes from the records of a dataset, shard by shard."""
