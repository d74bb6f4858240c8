"""Removing records from a dataset: planning, cutting shards, one commit."""
