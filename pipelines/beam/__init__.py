"""Runs of pipelines: their options and runners."""
