"""Exact duplicates: found by digests of records, in runs and partitions."""
