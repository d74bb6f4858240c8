"""Documents become rows of tokens."""
