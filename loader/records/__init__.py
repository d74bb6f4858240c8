"""Datasets of Grain around the global batches, record by record."""
