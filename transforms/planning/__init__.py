"""The input bytes or records that make each shard: pure functions."""
