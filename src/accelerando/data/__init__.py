"""Data that ships with the package, each set in its own folder with its licence and how it was made."""
