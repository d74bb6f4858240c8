"""What every transform does for Beam, beside its work."""
