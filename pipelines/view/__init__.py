"""A page about a dataset, and its order in training, in one file."""
