"""What a notebook shows when ranks, a cluster or a worker did not come to their end: the sentence, and no traceback."""

from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from accelerando import cluster, ranks, workers
from accelerando.plain_errors import PlainError
from accelerando.ranks import record

LOST = record.RanksResult(
    record.SCHEMA, "torchrun", "torchrun …", 2, 1, False, "not finished after 240 s; all ranks were ended", 1, 240.0,
    ("", "step 3\n"), "", (None, None),
)  # fmt: skip
CASES = {
    "RanksFailed: not finished after 240 s; all ranks were ended\n  [rank 1] step 3\n": ranks.RanksFailed(LOST),
    "ClusterError: the cluster is no longer up\n": cluster.ClusterError("the cluster is no longer up"),
    "ExperimentFailed: m:f: no answer within 9 s\n": workers.ExperimentFailed("m:f: no answer within 9 s"),
}


@pytest.mark.parametrize("shown", CASES)
def test_a_cell_shows_the_sentence_alone(
    shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    error = CASES[shown]

    def measure_something() -> None:
        raise error

    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    shell.user_ns["measure_something"] = measure_something
    done = shell.run_cell("measure_something()")
    assert done.error_in_exec is error
    assert capsys.readouterr().out == shown


def test_elsewhere_it_is_an_error_like_every_other() -> None:
    for error in CASES.values():
        assert isinstance(error, PlainError)
        with pytest.raises(RuntimeError):
            raise error
