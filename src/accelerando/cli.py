"""The command line: one call per command. Everything heavy is imported by the command that needs it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="course",
    help="Accelerando: make PyTorch training faster, and keep the accuracy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Lab = Annotated[str, typer.Argument(help="1, 01, scaling or a folder such as labs/01_scaling.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]


@app.command()
def lab(
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the browser.")] = True,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port; default: a free one.")] = None,
) -> None:
    """Open the course in JupyterLab, on your own copies in work/."""
    from .room import lab_command

    raise typer.Exit(lab_command(browser, port))


@app.command()
def reset(lab: Lab) -> None:
    """Start a lab afresh; a dated copy of yours is kept."""
    from .room import reset_command

    raise typer.Exit(reset_command(lab))


@app.command()
def check(
    lab: Lab,
    notebook: Annotated[Path | None, typer.Option(help="Grade this file instead of the one in work/.")] = None,
    solution: Annotated[bool, typer.Option("--solution", help="Grade the course's own solution.")] = False,
    as_json: Json = False,
) -> None:
    """Grade a lab in the sandbox: points per question and the sentence that helps.

    Exit code: 0 all points, 1 some are missing, 2 could not be graded, 3 undecided.
    """
    from .grading.command import check_lab

    raise typer.Exit(check_lab(lab, notebook, solution, as_json))


@app.command()
def lesson(
    lab: Lab,
    check_only: Annotated[
        bool, typer.Option("--check", help="Only tell whether code and stored outputs belong together.")
    ] = False,
    budget: Annotated[str, typer.Option(help="smoke, quick or full.")] = "quick",
) -> None:
    """Run a lesson's notebook headless and store its outputs."""
    from .grading.authoring import lesson_command

    raise typer.Exit(lesson_command(lab, budget, check_only))


@app.command()
def build(
    check_only: Annotated[bool, typer.Option("--check", help="Only tell whether labs/ is up to date.")] = False,
) -> None:
    """Make labs/ from solutions/."""
    from .grading.authoring import build_command

    raise typer.Exit(build_command(check_only))


@app.command()
def doctor(as_json: Json = False) -> None:
    """Show this machine as the course sees it, and what is missing for which lesson."""
    from .doctor import doctor_command

    raise typer.Exit(doctor_command(as_json))


@app.command()
def inspect(
    kind: Annotated[str, typer.Argument(help="lscpu, topo, topo-xml, nccl-log or hosts.")],
    file: Annotated[Path, typer.Argument(help="A text file, or - for standard input.")],
    as_json: Json = False,
) -> None:
    """Read another machine's dump: what it says, and what it does not.

    Exit code: 0 read, 1 refused, 2 usage.
    """
    from .readers import inspect_command

    raise typer.Exit(inspect_command(kind, file, as_json))


@app.command()
def test(
    quick: Annotated[bool, typer.Option("--quick", help="Only the tests that need no torch process.")] = False,
    only: Annotated[list[str] | None, typer.Argument(help="Arguments for pytest.")] = None,
) -> None:
    """Run the tests: style, types, architecture, then pytest."""
    from .testing import test_command

    raise typer.Exit(test_command(quick, only or []))


def main() -> None:
    """Run one command; Ctrl-C ends it with one line and exit code 130."""
    try:
        app(prog_name="./course")
    except KeyboardInterrupt:
        print("course: stopped", file=sys.stderr)  # noqa: T201
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
