"""The errors, digests and encodings that everything else builds on."""
