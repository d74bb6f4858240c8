"""A page to look at a dataset, and at the order that it is trained in."""
