"""Packed rows as batches for a trainer."""
