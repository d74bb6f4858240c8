"""Submission to Dataflow, against stand-ins."""
