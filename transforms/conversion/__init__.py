"""Running a conversion: shard by shard, then one commit."""
