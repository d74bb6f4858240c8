"""Bytes on disk and in buckets: codec, indexes, manifest, stores."""
