"""The order of records: pure functions of the step, without any file."""
