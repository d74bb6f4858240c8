"""The adapters, one file a loader. `benchmarks.resume.protocol` says what each has."""
