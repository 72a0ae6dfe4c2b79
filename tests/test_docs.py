"""What the documents say of the course is what the catalog and the files say."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from accelerando import catalog

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("lesson", catalog.lessons(), ids=lambda lesson: lesson.slug)
def test_the_readme_has_the_lessons_row(lesson: catalog.Lesson) -> None:
    rows = [line for line in README.splitlines() if line.startswith(f"| {lesson.number} |")]
    assert len(rows) == 1
    for words in (lesson.title, lesson.belief, f"| {lesson.minutes} |"):
        assert words in rows[0]
    assert (f"{lesson.points} points" in rows[0]) == lesson.is_built
    assert ("not built yet" in rows[0]) != lesson.is_built


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text(encoding="utf-8")):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_a_built_lesson_has_all_its_parts() -> None:
    for lesson in filter(lambda lesson: lesson.is_built, catalog.lessons()):
        for place in (
            f"notebooks/{lesson.folder}.ipynb",
            f"solutions/{lesson.folder}/{lesson.folder}.ipynb",
            f"labs/{lesson.folder}/{lesson.folder}.ipynb",
            f"labs/{lesson.folder}/manifest.json",
            f"src/accelerando/checks/{lesson.slug}.py",
            f"src/accelerando/quizzes/{lesson.number:02d}.toml",
        ):
            assert (ROOT / place).is_file(), place
        module = ROOT / "src" / "accelerando" / "lessons" / lesson.slug
        assert module.with_suffix(".py").is_file() or (module / "__init__.py").is_file(), module


def test_conda_users_get_the_lock_and_no_second_version() -> None:
    *plain, pip = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert pip == {"pip": ["-r requirements.txt", "-e ."]}
    assert [entry.partition("=")[0] for entry in plain] == ["python", "pip"]


def test_the_lock_pins_everything_and_names_no_address() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lock = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line]
    assert all(re.match(r"[A-Za-z0-9._-]+==[^ ]+( ; .+)?$", line) for line in lock)
    names = {line.partition("==")[0].lower() for line in lock}
    for requirement in project["dependencies"]:
        assert re.match(r"[A-Za-z0-9._-]+", requirement).group().lower() in names
