"""The end of a team: one worker that cannot be closed keeps nothing else from being cleaned up."""

from accelerando.lessons.multi_cpu.teams import Team


def test_one_worker_that_cannot_be_closed_keeps_nothing_from_ending() -> None:
    closed: list[str] = []

    class Broken:
        def close(self) -> None:
            raise OSError(9, "Bad file descriptor")

    class Fine:
        def close(self) -> None:
            closed.append("fine")

    team = Team("m:f", 2, threads=1, cpus=[None, None])
    team._workers = [Broken(), Fine()]  # type: ignore[list-item]
    team.close()
    assert closed == ["fine"]
    assert not team._folder.exists()
    assert team._pool._shutdown
