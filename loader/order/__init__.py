"""Which record comes when: pure functions of the step."""
