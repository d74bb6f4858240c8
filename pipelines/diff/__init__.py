"""The differences between two editions of a dataset, or two datasets."""
