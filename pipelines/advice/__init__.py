"""Advice before a conversion: its result and its duration."""
