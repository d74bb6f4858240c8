"""Every option, described once, and the jobs that options make."""
