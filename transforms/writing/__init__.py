"""Records of a PCollection become shards."""
