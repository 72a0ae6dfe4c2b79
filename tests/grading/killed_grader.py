"""A program that grades a submission of the final with the real command, on tiny tasks, until it is killed.

Its argument is the code of the answer to part a; the learner's folder comes from the environment.
"""

import functools
import sys
from pathlib import Path

from tiny_final import LIMITS, TIMED, TinyTrainer, submission, tasks

from accelerando.grading import assess, command

if __name__ == "__main__":
    code, file = sys.argv[1], sys.argv[2]
    real = assess.assess
    tiny = {"lesson": TIMED, "read": lambda path, which: submission(code), "make_tasks": tasks}
    assess.assess = functools.partial(real, **tiny, make_trainer=TinyTrainer, limits=LIMITS)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.exit(command.assess_command(Path(file), False, None, False))
