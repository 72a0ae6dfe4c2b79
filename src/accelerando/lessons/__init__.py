"""The experiments of the lessons, one module each. Lessons do not import each other."""
