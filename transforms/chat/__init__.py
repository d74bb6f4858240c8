"""Conversations as documents: rendered by a template, with the spans of messages."""
