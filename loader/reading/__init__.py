"""Reads records by their indices, and checks them."""
