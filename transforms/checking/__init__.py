"""Verifying a dataset that is committed."""
