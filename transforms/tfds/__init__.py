"""TFDS directories as input, and the metadata by which TFDS reads the output."""
