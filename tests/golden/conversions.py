"""Conversions of every format, locally, on Beam, and in a bucket."""
