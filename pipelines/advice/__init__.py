"""Advice before a conversion: what it will make, take and cost."""
