"""Where the records of rows come from."""
