"""Rows of tokens and of conversations."""
