"""ArrayRecord files that exist become a dataset in place."""
