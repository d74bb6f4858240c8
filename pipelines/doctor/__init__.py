"""Whether a machine is fit for the work, and a dataset's place with it."""
