"""nbgrader's settings for this course: solutions/ -> labs/, submissions and feedback in classroom/ (git-ignored).

`./course build` makes labs/ with points from the catalog; `nbgrader` on the command line reads this file when it is
run in this folder. The sandboxed grader (`./course check`) is the one to trust: nbgrader runs learners' code in the
same process as the tests.
"""

from pathlib import Path

c = get_config()  # noqa: F821  # given by traitlets

root = Path(__file__).resolve().parent

c.CourseDirectory.course_id = "accelerando"
c.CourseDirectory.root = str(root)
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "labs"
c.CourseDirectory.submitted_directory = "classroom/submitted"
c.CourseDirectory.autograded_directory = "classroom/autograded"
c.CourseDirectory.feedback_directory = "classroom/feedback"
(root / "classroom").mkdir(exist_ok=True)  # nbgrader's database does not make its folder
c.CourseDirectory.db_url = f"sqlite:///{root / 'classroom' / 'gradebook.db'}"

# A deleted test cell comes back; by default it would simply be worth nothing.
c.OverwriteCells.add_missing_cells = True

# The default of 30 s a cell is less than importing torch can take on a busy machine.
c.Execute.timeout = 180
c.Execute.interrupt_on_timeout = True
c.LimitOutput.max_lines = 200
c.LimitOutput.max_traceback = 20

# A warning on stderr is not a wrong answer: nbgrader would give 0 points for it.
c.Autograde.autograde_preprocessors = [
    "nbgrader.preprocessors.Execute",
    "accelerando.grading.nbgrader_steps.MoveWarnings",
    "nbgrader.preprocessors.IgnorePattern",
    "nbconvert.preprocessors.ClearMetadataPreprocessor",
    "nbgrader.preprocessors.LimitOutput",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]
