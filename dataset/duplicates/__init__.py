"""The certificate of duplicates: each removal, and the record that is kept for it."""
