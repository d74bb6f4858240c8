"""Rows of tokens made from documents."""
