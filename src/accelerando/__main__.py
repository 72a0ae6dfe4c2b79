"""``python -m accelerando`` is the same as the ``accelerando`` command."""

from .cli import main

if __name__ == "__main__":
    main()
