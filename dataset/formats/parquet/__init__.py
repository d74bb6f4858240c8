"""The Parquet format: where rows are, and reading them as columns by pyarrow."""
