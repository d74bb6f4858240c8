"""Editions, columns, removal, and commands at once."""
