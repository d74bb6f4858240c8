"""The examples for trainers, with the real trainers in environments of their own."""
