"""The room the learner works in: JupyterLab on their own copies, opened on a page that shows where they stand.

The page is served by a small Jupyter server extension and not by a notebook or a Markdown file, because only a page
made anew on each visit can show what was passed a minute ago, and it needs no kernel to do so.
"""

from .launch import lab_command, reset_command

__all__ = ["lab_command", "reset_command"]
