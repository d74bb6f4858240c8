"""Reading ranges of objects in Cloud Storage."""
