"""What is written of the records of a shard: the records, or rows of tokens."""
