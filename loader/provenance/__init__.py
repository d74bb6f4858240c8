"""The origin of the records of rows."""
