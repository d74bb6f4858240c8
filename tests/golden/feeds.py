"""Feeds, decoded arrays, and places of records in their sources."""
