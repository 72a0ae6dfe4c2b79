"""The launcher sets up what is missing, once, and says in one sentence what keeps it from doing so.

The installer is a small script on PATH: what is tested is the launcher's own behaviour, not the package index.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = (
    "bash",
    "awk",
    "cat",
    "cut",
    "date",
    "df",
    "dirname",
    "du",
    "env",
    "grep",
    "head",
    "mkdir",
    "rm",
    "sleep",
    "tail",
)
MODULES = ("torch", "torchvision", "jupyterlab", "nbgrader", "ipywidgets", "matplotlib", "scipy", "accelerando")


class Machine:
    """A folder with a copy of the launcher, and a PATH on which only what we put there exists."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder / "a course", folder / "bin"
        self.folder.mkdir()
        self.bin.mkdir()
        shutil.copy(ROOT / "course", self.folder / "course")
        (self.folder / "requirements.txt").write_text("torch==2.8.0\n")
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)
        stubs = folder / "stubs"
        stubs.mkdir()
        for module in MODULES:
            (stubs / f"{module}.py").write_text("")
        (stubs / "accelerando.py").write_text("import sys\nif __name__ == '__main__': print('ran', *sys.argv[1:])\n")
        self.script("python3.11", f'PYTHONPATH="{stubs}" exec "{sys.executable}" "$@"')
        self.installs = folder / "installs"
        self.install_with("exit 0")

    def script(self, name: str, body: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!{shutil.which('bash')}\n{body}\n")
        path.chmod(0o755)

    def install_with(self, body: str) -> None:
        """Make `uv pip sync` do this; `uv venv` makes an environment whose Python is the one above."""
        self.script(
            "uv",
            f"""env="${{@: -1}}"
            case "$1 $2" in
            "venv "*) mkdir -p "$env/bin"; : >"$env/pyvenv.cfg"
                 printf '#!%s\\nexec "%s" "$@"\\n' "{shutil.which("bash")}" "{self.bin}/python3.11" >"$env/bin/python"
                 "{shutil.which("chmod")}" +x "$env/bin/python" ;;
            "pip sync") echo sync >>"{self.installs}"; {body} ;;
            "python find") exit 1 ;;
            esac""",
        )

    def command(self, *arguments: str, **environment: str) -> subprocess.Popen:
        return subprocess.Popen(
            [self.folder / "course", *arguments],
            env={"PATH": str(self.bin), "HOME": str(self.folder), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        process = self.command(*arguments, **environment)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def count_installs(self) -> int:
        return len(self.installs.read_text().split()) if self.installs.exists() else 0


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def sentence(run: subprocess.CompletedProcess) -> str:
    """The one line that tells what is wrong; nothing else of ours may stand there."""
    assert run.returncode != 0
    lines = [line for line in run.stderr.splitlines() if not line.startswith("course: setting up")]
    assert len(lines) == 1, run.stderr
    assert "Traceback" not in run.stderr
    return lines[0]


def test_first_call_sets_up_and_second_starts_at_once(machine: Machine) -> None:
    assert machine.run("doctor", "--json").stdout == "ran doctor --json\n"
    second = machine.run("doctor")
    assert (second.stdout, second.stderr) == ("ran doctor\n", "")
    assert machine.count_installs() == 1


def test_a_changed_lock_is_noticed(machine: Machine) -> None:
    machine.run("doctor")
    (machine.folder / "requirements.txt").write_text("torch==2.8.1\n")
    assert "up to date" in machine.run("doctor").stderr
    assert machine.count_installs() == 2


def test_a_moved_folder_is_noticed(machine: Machine) -> None:
    machine.run("doctor")
    machine.folder = machine.folder.rename(machine.folder.with_name("elsewhere"))
    machine.run("doctor")
    assert machine.count_installs() == 2


def test_help_needs_no_environment(machine: Machine) -> None:
    run = machine.run("--help")
    assert run.returncode == 0
    assert "./course COMMAND" in run.stdout
    assert machine.count_installs() == 0


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        ("error: Connection refused (os error 111)", "network"),
        ("dns error: failed to lookup address", "network"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("error: command 'gcc' failed: No such file or directory", "install one"),
    ],
)
def test_a_failing_installer_is_one_sentence(machine: Machine, words: str, cure: str) -> None:
    machine.install_with(f'echo "{words}" >&2; exit 1')
    assert cure in sentence(machine.run("lab"))
    machine.install_with("exit 0")
    assert machine.run("doctor").stdout == "ran doctor\n", "the next call repairs it"


def test_an_unknown_failure_shows_the_installers_last_words(machine: Machine) -> None:
    machine.install_with("echo strange things >&2; exit 7")
    run = machine.run("lab")
    assert run.returncode != 0
    assert "strange things" in run.stderr


def test_too_little_disk_is_said_before_anything_is_installed(machine: Machine) -> None:
    machine.script("df", "printf 'h\\n/dev/x 100 10 3145728 9%% /\\n'")
    assert "3 GB are free" in sentence(machine.run("lab"))
    assert machine.count_installs() == 0


def test_a_wrong_python_is_named(machine: Machine) -> None:
    (machine.bin / "python3.11").unlink()
    machine.script("python3", 'case "$1" in --version) echo Python 3.9.1;; *) exit 1;; esac')
    assert "Python 3.9.1" in sentence(machine.run("lab"))


def test_no_python_at_all(machine: Machine) -> None:
    (machine.bin / "python3.11").unlink()
    assert "found: none" in sentence(machine.run("lab"))


def test_a_python_that_was_asked_for_and_is_wrong_is_refused(machine: Machine) -> None:
    assert "ACCELERANDO_PYTHON" in sentence(machine.run("lab", ACCELERANDO_PYTHON="/bin/false"))


def test_an_environment_that_does_not_import_is_not_called_ready(machine: Machine) -> None:
    (machine.bin.parent / "stubs" / "nbgrader.py").write_text("raise ImportError('half a file')")
    run = machine.run("doctor")
    assert run.returncode != 0
    assert "half a file" in run.stderr
    assert run.stdout == ""


def test_interrupted_half_way_it_says_so_and_repairs_itself(machine: Machine) -> None:
    machine.install_with("sleep 30")
    process = machine.command("doctor")
    while machine.count_installs() == 0:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "goes on where it stopped" in err
    assert not (machine.folder / ".venv.lock").exists()
    machine.install_with("exit 0")
    assert machine.run("doctor").stdout == "ran doctor\n"


def test_killed_half_way_it_repairs_itself(machine: Machine) -> None:
    machine.install_with("sleep 30")
    process = machine.command("doctor")
    while machine.count_installs() == 0:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=20)
    machine.install_with("exit 0")
    assert machine.run("doctor").stdout == "ran doctor\n"


def test_two_first_calls_install_once(machine: Machine) -> None:
    machine.install_with("sleep 2")
    first, second = machine.command("doctor"), machine.command("check", "1")
    assert first.communicate(timeout=60)[0] == "ran doctor\n"
    assert second.communicate(timeout=60)[0] == "ran check 1\n"
    assert machine.count_installs() == 1
