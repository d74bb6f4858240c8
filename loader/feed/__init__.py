"""Batches read ahead of the trainer."""
