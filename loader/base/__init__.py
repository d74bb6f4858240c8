"""Indices, content names, fields of states and tables for notebooks."""
