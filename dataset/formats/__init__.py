"""File formats: their first bytes, their names, and how each is read."""
