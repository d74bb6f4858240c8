"""Changes of datasets, and what Python writers make."""
