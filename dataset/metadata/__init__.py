"""The metadata of a dataset: its names, tables, indexes and `dataset.json`."""
