"""Decodes records to arrays."""
