"""Records, documents and tokens that a run has seen up to a step."""
