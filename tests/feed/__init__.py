"""From a dataset to the batches of a host."""
