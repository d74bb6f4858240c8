"""The PTransforms, and what each of them does for Beam besides its work."""
