"""Directories as inputs: those of TFDS and of Hugging Face repositories."""
