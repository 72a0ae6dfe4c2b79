"""Trusted probes: they run inside the learner's worker and count what cannot travel on a pipe."""
