"""A test of resuming: loaders are stopped, and are resumed from their states."""
