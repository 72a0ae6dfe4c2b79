"""Errors that say in words why an experiment did not come to its end: a notebook shows the words and no traceback."""


class PlainError(RuntimeError):
    """The message is all that one needs to know: where in the course's code it was raised tells nothing more.

    On a slow or small machine an experiment may run out of time in any lesson, so no lesson has to catch that. Outside
    of notebooks it is an error like every other.
    """

    def _render_traceback_(self) -> list[str]:
        """Stand in for the traceback; IPython asks for it."""
        return [f"{type(self).__name__}: {self}"]
