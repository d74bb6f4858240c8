"""Tar archives of samples, as WebDataset lays them out."""
