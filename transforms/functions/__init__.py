"""Functions of the user's: found by name, called on records, named in errors."""
