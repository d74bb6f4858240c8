"""Ranges of objects in Cloud Storage, read in parallel."""
