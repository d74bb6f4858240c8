"""Trainers that a feed serves."""
