"""Exact duplicates on this machine: found, checked again, and made a column."""
