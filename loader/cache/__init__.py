"""Copies of remote data on this host."""
