"""The formats that records come from."""
