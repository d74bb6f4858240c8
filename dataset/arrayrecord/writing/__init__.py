"""Encoding records into ArrayRecord files."""
