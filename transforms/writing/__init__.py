"""Writing the records of a PCollection as shards."""
