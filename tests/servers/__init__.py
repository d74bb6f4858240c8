"""Fake servers of Cloud Storage, over real HTTP."""
