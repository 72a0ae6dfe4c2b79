"""Accelerando: an interactive, auto-graded course on making PyTorch training faster.

Importing the package does nothing; every module says in its first line what it is for.
"""

__version__ = "0.1.0"
