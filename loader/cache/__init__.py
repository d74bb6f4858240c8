"""Keeps copies of remote data on this host."""
