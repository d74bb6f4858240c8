"""Rows of tokens: documents and conversations."""
