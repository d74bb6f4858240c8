"""Reads converted datasets in a deterministic order and feeds trainers from them."""
