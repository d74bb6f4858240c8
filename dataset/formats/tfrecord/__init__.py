"""The TFRecord format: frames, and reading them from plain or compressed files."""
