"""Records of lines: text, JSON lines, CSV and TSV."""
