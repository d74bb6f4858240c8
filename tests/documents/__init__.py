"""The pages, the site, and their language."""
