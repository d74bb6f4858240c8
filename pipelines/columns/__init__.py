"""Attaching columns to the records of a dataset: from tables, or by a function."""
