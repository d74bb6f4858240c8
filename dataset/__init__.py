"""The on-disk contract that writers and readers share: formats, names, checks."""
