"""Grain's datasets and sources around records and global batches."""
