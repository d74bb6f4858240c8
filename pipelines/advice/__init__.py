"""Advice before a conversion: its result, duration and cost."""
