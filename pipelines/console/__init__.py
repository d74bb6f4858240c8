"""What every command has: common options, messages, and how its process ends."""
