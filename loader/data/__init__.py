"""Opened datasets, and the global batches that are made of them."""
