"""The page of `gristmill view`."""
