"""A page about a dataset, and the order that it is trained in, in one file."""
