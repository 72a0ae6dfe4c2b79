"""The newest torch is tested without what ended before it, and with everything else that the course needs."""

import tomllib

from accelerando.testing import newest_requirements
from accelerando.work import checkout


def test_the_newest_environment_frees_torch_and_leaves_out_only_ipex() -> None:
    pyproject = checkout() / "pyproject.toml"
    wanted = newest_requirements(pyproject)
    assert "torch" in wanted
    assert "torchvision" in wanted
    assert not any("intel-extension" in line for line in wanted)
    assert "nni==3.0" in wanted
    assert len(wanted) == len(tomllib.loads(pyproject.read_text())["project"]["dependencies"]) - 1
