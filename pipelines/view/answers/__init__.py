"""Answers to the page's questions: pure functions of the opened datasets."""
