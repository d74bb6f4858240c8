"""Verifying a committed dataset."""
