"""Rows of tokens: how documents are packed into them, and found in them again."""
