"""Fixtures of the grading tests."""

from tiny_course import built, learner

__all__ = ["built", "learner"]
