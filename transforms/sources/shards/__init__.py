"""ArrayRecord files as a source: datasets, TFDS directories, and plain files."""
