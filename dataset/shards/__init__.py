"""Shards with their indexes, opened and read in order."""
