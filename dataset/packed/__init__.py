"""Rows of tokens: the packing of documents into them, and the way back."""
