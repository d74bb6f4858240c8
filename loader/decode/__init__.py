"""Records decoded to arrays."""
