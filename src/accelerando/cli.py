"""The command line: one call per command. Everything heavy is imported by the command that needs it."""

import contextlib
import errno
import io
import os
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

cluster_app = typer.Typer(
    help="A cluster on one machine: nodes with their own address, host name and link speed.", no_args_is_help=True
)
app.add_typer(cluster_app, name="cluster")

_PASS_ON = {"ignore_unknown_options": True}  # they are the program's own
ClusterName = Annotated[str, typer.Option("--name", help="Which cluster, if you have several.")]
Lab = Annotated[str, typer.Argument(help="1, 01, scaling or a folder such as labs/01_scaling.")]
Isolation = Annotated[bool, typer.Option("--require-isolation", help="Refuse where learner code cannot be isolated.")]
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
def reset(
    lab: Lab,
    only_lesson: Annotated[bool, typer.Option("--lesson", help="Only the lesson's notebook; the lab stays.")] = False,
    only_lab: Annotated[bool, typer.Option("--lab", help="Only the lab; the lesson's notebook stays.")] = False,
) -> None:
    """Start a lesson and its lab afresh; a dated copy of yours is kept."""
    from .room import reset_command

    chosen = {"lesson": only_lesson, "lab": only_lab}
    raise typer.Exit(reset_command(lab, [part for part, is_named in chosen.items() if is_named]))


@app.command()
def check(
    lab: Lab,
    notebook: Annotated[Path | None, typer.Option(help="Grade this file instead of the one in work/.")] = None,
    solution: Annotated[bool, typer.Option("--solution", help="Grade the course's own solution.")] = False,
    as_json: Json = False,
    require_isolation: Isolation = False,
) -> None:
    """Grade a lab in the sandbox: points per question and the sentence that helps.

    Exit code: 0 all points, 1 some are missing, 2 could not be graded, 3 undecided.
    """
    from .grading.command import check_lab

    raise typer.Exit(check_lab(lab, notebook, solution, as_json, require_isolation))


@app.command()
def assess(
    submission: Annotated[Path | None, typer.Option(help="Grade this file instead of the one in work/.")] = None,
    as_json: Json = False,
    budget: Annotated[float | None, typer.Option(min=30, help="Seconds for all together; default: 480.")] = None,
    require_isolation: Isolation = False,
) -> None:
    """Grade the final: your training against the starter's, in one session on this machine.

    Exit code: 0 all points, 1 some are missing, 2 could not be graded, 3 undecided.
    """
    from .grading.command import assess_command

    raise typer.Exit(assess_command(submission, as_json, budget, require_isolation))


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


@app.command(context_settings=_PASS_ON)
def ranks(
    program: Annotated[str, typer.Argument(help="A Python file, a module or package.module:function.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments; after -- if need be.")] = None,
    world_size: Annotated[int, typer.Option("--world-size", help="Processes, 1 to 64.")] = 2,
    launcher: Annotated[str, typer.Option(help="torchrun, mpirun, srun or sbatch.")] = "torchrun",
    threads: Annotated[int, typer.Option(help="OpenMP threads of each process.")] = 1,
    time_limit: Annotated[float, typer.Option(help="Seconds.")] = 600.0,
) -> None:
    """Run a program on several ranks of this machine; the line that does it is shown.

    Exit code: 0 finished, 1 failed or not in time, 2 usage.
    """
    from .ranks.command import ranks_command

    raise typer.Exit(ranks_command(program, arguments or [], world_size, launcher, threads, time_limit))


@cluster_app.command("up")
def cluster_up(
    nodes: Annotated[int, typer.Option(help="1 to 16.")] = 2,
    bandwidth: Annotated[str | None, typer.Option(help="Of each link, such as 200mbit.")] = None,
    latency: Annotated[str | None, typer.Option(help="Added one way, such as 1ms.")] = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="Start Slurm too.")] = False,
    name: ClusterName = "default",
    minutes: Annotated[float, typer.Option(help="It goes down by itself after these.")] = 240.0,
    loopback: Annotated[bool, typer.Option("--loopback", help="Only addresses, no namespaces.")] = False,
) -> None:
    """Make the nodes.

    Exit code: 0 up, 1 it could not be made, 2 usage.
    """
    from .cluster.commands import up_command

    raise typer.Exit(up_command(nodes, bandwidth, latency, slurm, name, minutes, loopback))


@cluster_app.command("run", context_settings=_PASS_ON)
def cluster_run(
    program: Annotated[str, typer.Argument(help="A Python file, a module or package.module:function.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments; after -- if need be.")] = None,
    launcher: Annotated[str, typer.Option(help="torchrun, mpirun, srun or sbatch.")] = "torchrun",
    on: Annotated[str | None, typer.Option(help="Nodes, such as node2,node1; default: all.")] = None,
    ranks_per_node: Annotated[int, typer.Option(help="Processes on each node.")] = 1,
    threads: Annotated[int, typer.Option(help="OpenMP threads of each process.")] = 1,
    time_limit: Annotated[float, typer.Option(help="Seconds.")] = 600.0,
    name: ClusterName = "default",
) -> None:
    """Run a program on the nodes.

    Exit code: 0 finished, 1 failed or not in time, 2 usage.
    """
    from .cluster.commands import run_command

    raise typer.Exit(run_command(program, arguments or [], launcher, on, ranks_per_node, threads, time_limit, name))


@cluster_app.command("status")
def cluster_status(name: ClusterName = "default", as_json: Json = False) -> None:
    """Show nodes, link and what runs."""
    from .cluster.commands import status_command

    raise typer.Exit(status_command(name, as_json))


@cluster_app.command("down")
def cluster_down(name: ClusterName = "default") -> None:
    """End everything on the cluster."""
    from .cluster.commands import down_command

    raise typer.Exit(down_command(name))


@app.command(context_settings=_PASS_ON)
def test(
    quick: Annotated[bool, typer.Option("--quick", help="Only the tests that need no torch process.")] = False,
    newest: Annotated[
        bool, typer.Option("--newest", help="Lessons and labs with the newest torch, in an environment of its own.")
    ] = False,
    only: Annotated[list[str] | None, typer.Argument(help="Arguments for pytest.")] = None,
) -> None:
    """Run the tests: style, types, architecture, then pytest."""
    from .testing import newest_command, test_command

    raise typer.Exit(newest_command(only or []) if newest else test_command(quick, only or []))


def main() -> None:
    """Run one command; Ctrl-C ends it with one line and exit code 130, output that nobody takes with one, too."""
    _spell_out_what_cannot_be_shown()
    try:
        try:
            app(prog_name="./course")
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        print("course: stopped", file=sys.stderr)  # noqa: T201
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
            raise
        with contextlib.suppress(OSError):
            print(f"course: the output cannot be written: {error.strerror}", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(74)  # another try to flush it would end in a traceback


def _spell_out_what_cannot_be_shown() -> None:
    """A terminal or pipe in ASCII, or half a character in a file's name, must not end a command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
