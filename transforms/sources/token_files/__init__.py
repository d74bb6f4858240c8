"""Files of tokens, whose documents are packed as they are."""
