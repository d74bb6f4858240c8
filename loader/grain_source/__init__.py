"""Sources for pipelines of Grain."""
