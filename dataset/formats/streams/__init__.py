"""Streams of bytes that hold records, whatever their format."""
