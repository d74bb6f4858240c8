"""MaxText, by a stand-in."""
