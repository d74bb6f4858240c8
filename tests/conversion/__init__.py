"""From inputs to a committed dataset."""
