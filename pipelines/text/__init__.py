"""Results and messages of commands, as text and as JSON."""
