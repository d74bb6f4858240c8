"""What the page asks for: pure functions of what was opened."""
