"""Directories as inputs: TFDS directories and Hugging Face repositories."""
