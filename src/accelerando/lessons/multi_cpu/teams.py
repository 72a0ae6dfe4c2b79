"""A team of processes that train together and stay up between calls, each on the cores that it was given.

`ranks.run` starts a program, and it ends. To time the same layout again and again, its processes must live on: each
rank is a `workers.Worker` here, pinned before it has loaded anything, and idle while another team has its turn.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from accelerando.workers import Experiment, Worker

ORDER = "order.json"
_VARIABLES: dict[str, str | None] = dict.fromkeys(("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"))


class Team:
    """Ranks of this machine, for a ``with`` block or until the process ends.

    Args:
        target: ``"package.module:function"`` that prepares a rank: called with ``rank``, ``world_size``, ``folder``
            and ``arguments``, it returns what is then called for every order.
        ranks: Processes.
        threads: OpenMP threads of each.
        cpus: For each rank the cores that it may use; None: all.
        arguments: For every rank.
    """

    def __init__(
        self,
        target: str,
        ranks: int,
        *,
        threads: int,
        cpus: Sequence[tuple[int, ...] | None],
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Start nothing yet."""
        self._folder = Path(tempfile.mkdtemp(prefix="accelerando-team-"))
        loopback = "lo" if sys.platform == "linux" else "lo0"
        self._workers = [
            Worker(
                Experiment(
                    target,
                    {"rank": rank, "world_size": ranks, "folder": str(self._folder), **(arguments or {})},
                    {
                        **_VARIABLES,
                        "OMP_NUM_THREADS": str(threads),
                        "GLOO_SOCKET_IFNAME": loopback,
                        "RANK": str(rank),
                        "WORLD_SIZE": str(ranks),
                        "LOCAL_RANK": str(rank),
                    },
                    cpus[rank],
                    prepares=True,
                )
            )
            for rank in range(ranks)
        ]
        self._pool = ThreadPoolExecutor(ranks)

    def start(self) -> Self:
        """Start all ranks; each waits until the others have come.

        Raises:
            ExperimentFailed: If one of them cannot.
        """
        atexit.register(self.close)
        self._together([self._pool.submit(worker.__enter__) for worker in self._workers])
        return self

    def call(self, *, time_limit_s: float = 120.0, **order: Any) -> list[Any]:
        """Give all ranks the same order, and return what each of them answers.

        Args:
            time_limit_s: Afterwards the team is ended.
            order: Numbers and text, which each rank reads with `read_order`.

        Raises:
            ExperimentFailed: If a rank fails; the team is then ended.
        """
        (self._folder / ORDER).write_text(json.dumps(order), encoding="utf-8")
        waiting = [self._pool.submit(worker.call, time_limit_s=time_limit_s) for worker in self._workers]
        return self._together(waiting)

    def close(self) -> None:
        """End all ranks; safe to call twice."""
        atexit.unregister(self.close)
        for worker in self._workers:
            with contextlib.suppress(OSError):  # one that cannot be closed keeps no other from it
                worker.close()
        self._pool.shutdown(cancel_futures=True)  # waits for calls to notice, so that nothing is left
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        """Start all ranks."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them."""
        self.close()

    def _together(self, waiting: Sequence[Future[Any]]) -> list[Any]:
        try:
            done, _ = wait(waiting, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            return [future.result() for future in waiting]
        except BaseException:  # the others wait for the one that failed
            self.close()
            raise


def read_order(folder: str) -> dict[str, Any]:
    """Return what the team was told, inside a rank."""
    order: dict[str, Any] = json.loads((Path(folder) / ORDER).read_text(encoding="utf-8"))
    return order
