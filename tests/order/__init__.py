"""Which record is in which row, and back."""
