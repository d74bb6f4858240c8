"""Checks of a machine, and of a dataset's place, for the work."""
