"""Datasets that a Python loop writes, without Beam."""
