"""Running on processes of this machine."""
