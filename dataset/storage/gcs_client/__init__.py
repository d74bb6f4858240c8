"""Requests to Google Cloud Storage."""
