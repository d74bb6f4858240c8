"""Removing records from a dataset, and finding those that a user names."""
