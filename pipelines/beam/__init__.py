"""Runs of pipelines: the options, the runners, the graphs of jobs."""
