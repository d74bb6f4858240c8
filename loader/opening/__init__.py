"""Opens datasets: by a directory, by files, or several as one."""
