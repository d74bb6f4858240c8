"""Programs that measure gristmill against its peers."""
