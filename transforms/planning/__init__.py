"""Which input bytes or records make which shard: pure functions."""
