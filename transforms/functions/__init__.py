"""User-defined functions: found by name, called on records, named in errors."""
