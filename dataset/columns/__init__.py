"""Columns beside records: the type of their values, and the file of a shard."""
