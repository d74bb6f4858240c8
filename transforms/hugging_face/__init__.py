"""Directories of Hugging Face as input."""
