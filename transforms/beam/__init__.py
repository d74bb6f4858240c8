"""The PTransforms, with their coders, metrics and checks."""
