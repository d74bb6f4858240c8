"""Indices, content names, fields of states and tables of text."""
