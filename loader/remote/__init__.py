"""Reads ranges of objects in Cloud Storage."""
