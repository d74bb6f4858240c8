"""Submitting to Dataflow."""
