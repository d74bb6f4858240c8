"""Damage, kills, and services that fail."""
