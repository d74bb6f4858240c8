"""Record bytes become arrays."""
