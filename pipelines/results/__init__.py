"""What a command shows when it has finished."""
