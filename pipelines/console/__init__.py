"""What a command says beside its result."""
