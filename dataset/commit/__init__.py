"""The commit: finished files become a committed dataset, without Beam."""
