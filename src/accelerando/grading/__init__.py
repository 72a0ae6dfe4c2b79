"""Grading: notebooks, the sandbox, scores."""
