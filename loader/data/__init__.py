"""Opened datasets, and the global batches made from them."""
