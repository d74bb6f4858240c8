"""What a dataset says of itself: its names, tables, indexes and `dataset.json`."""
