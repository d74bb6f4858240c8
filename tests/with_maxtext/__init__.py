"""The real MaxText on gristmill's datasets: by hand, in an environment of its own.

`python -m tests.with_maxtext` makes the environment, runs the table and says what
passed; see CONTRIBUTING.md. pytest collects nothing of it.
"""
