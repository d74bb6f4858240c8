"""Columns beside the records of a dataset: read, and used to select records."""
