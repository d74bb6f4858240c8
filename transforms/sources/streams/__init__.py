"""Formats that are read as one stream: records end to end."""
