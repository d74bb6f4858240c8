"""Storage of bytes: one protocol for local disks and Cloud Storage."""
