"""Parquet files as inputs."""
