"""The origin of records and packed rows."""
