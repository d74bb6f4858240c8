"""Where bytes live: one protocol for local disks and Cloud Storage."""
