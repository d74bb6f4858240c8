"""Beam transforms, and the plain functions that they wire."""
