"""The ArrayRecord format: footers, chunks, and the files that hold them."""
