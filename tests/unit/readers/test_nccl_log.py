"""The reader of NCCL logs: noise, causes and what follows from them."""

import pytest
from cases import SHARED, fixture

from accelerando.readers import nccl_log
from accelerando.readers.text import Unreadable


def test_healthy_log_is_ok_and_its_noise_is_named() -> None:
    answer = nccl_log.parse(fixture("nccl_ok_nvlink.log"))
    assert (answer["version"], answer["nranks"], answer["channels"]) == ("2.21.5", 2, 4)
    assert answer["transports"] == ["P2P"]
    assert (answer["verdict"], answer["root_cause"], answer["line"]) == ("ok", None, None)
    assert len(answer["harmless"]) == 3
    assert answer["harmless"][0].startswith("NET/Plugin")


def test_root_cause_is_the_first_real_one_not_the_first_complaint() -> None:
    answer = nccl_log.parse(fixture("nccl_failed_shm.log"))
    assert answer["verdict"] == "failed"
    assert "/dev/shm" in answer["root_cause"]
    assert answer["line"] == 8  # line 5 only says that the other rank hung up
    assert answer["transports"] == ["SHM"]


def test_watchdog_timeout_is_a_hang() -> None:
    answer = nccl_log.parse(fixture("nccl_hang_watchdog.log"))
    assert (answer["verdict"], answer["line"]) == ("hang", 1)
    assert "ALLREDUCE, number 812" in answer["root_cause"]
    assert "rank 0" in answer["root_cause"]


def test_cause_before_the_timeout_wins() -> None:
    warn = "n1:5:6 [0] ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.1<1> with error 12, opcode 1\n"
    answer = nccl_log.parse(warn + fixture("nccl_hang_watchdog.log"))
    assert (answer["verdict"], answer["line"]) == ("failed", 1)
    assert "status 12" in answer["root_cause"]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "init.cc:7 NCCL WARN Duplicate GPU detected : rank 1 and rank 3 both on CUDA device 5000",
            "rank 1 and rank 3",
        ),
        ("bootstrap.cc:9 NCCL WARN Bootstrap : no socket interface found", "NCCL_SOCKET_IFNAME"),
        (
            "init.cc:9 NCCL WARN Mismatched NCCL version detected : rank 0 version 21903 rank 1 version 22203",
            "version mismatch",
        ),
        ("init.cc:9 NCCL WARN Cuda failure 'out of memory'", "out of memory"),
        (
            "p2p.cc:9 NCCL WARN Cuda failure 'peer access is not supported between these two devices'",
            "NCCL_P2P_DISABLE",
        ),
        ("x.cc:9 NCCL WARN Cuda failure 999 'unknown error'", "unknown error"),
        ("include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device", "/dev/shm"),
        ("ib.cc:9 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out", "NCCL_IB_GID_INDEX"),
        ("socket.cc:9 NCCL WARN Connect to 10.0.0.2<5000> failed : No route to host", "route"),
        (
            "init.cc:9 NCCL WARN Mismatched collective detected, please check your collective calls",
            "different collectives",
        ),
        ("graph/rings.cc:9 NCCL WARN Error : ring 0 does not loop back to start", "does not loop back"),
    ],
)
def test_known_failures_are_named(message: str, words: str) -> None:
    answer = nccl_log.parse(
        f"NCCL version 2.19.3+cuda12.3\nn1:5:6 [0] {message}\nn1:5:6 [0] NCCL INFO init.cc:1 -> 3\n"
    )
    assert (answer["verdict"], answer["line"]) == ("failed", 2)
    assert words in answer["root_cause"]


def test_generic_error_is_blamed_when_nothing_better_is_there() -> None:
    answer = nccl_log.parse("RuntimeError: NCCL error in: x.cpp:1, unhandled system error, NCCL version 2.14.3\n")
    assert (answer["verdict"], answer["line"], answer["version"]) == ("failed", 1, "2.14.3")
    assert "NCCL_DEBUG" in answer["root_cause"]


def test_log_that_stops_early_is_unknown() -> None:
    text = fixture("nccl_ok_nvlink.log")
    answer = nccl_log.parse(text[: text.index("node7:910:940 [0] NCCL INFO Connected")])
    assert answer["verdict"] == "unknown"
    assert any("cut" in warning for warning in answer["warnings"])


def test_benchmark_without_a_first_result_hangs() -> None:
    head = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
    row = "           8             2     float     sum      -1    24.50    0.00    0.00      0\n"
    assert nccl_log.parse(fixture("nccl_ok_nvlink.log") + head)["verdict"] == "hang"
    assert nccl_log.parse(fixture("nccl_ok_nvlink.log") + head + row)["verdict"] == "ok"


def test_refused_connections_at_the_start_are_noise_once_the_ranks_are_ready() -> None:
    retry = "n1:5:6 [0] NCCL INFO Call to connect returned Connection timed out, retrying\n"
    assert nccl_log.parse(retry + fixture("nccl_ok_nvlink.log"))["verdict"] == "ok"
    assert nccl_log.parse("NCCL version 2.8.4\n" + retry * 3)["verdict"] == "hang"


@pytest.mark.parametrize(
    ("way", "name"),
    [
        ("via P2P/IPC", "P2P"),
        ("via P2P/direct pointer", "P2P"),
        ("via SHM/direct/direct", "SHM"),
        ("via direct shared memory", "SHM"),
        ("[send] via NET/IB/0/GDRDMA", "NET/IB"),
        ("[receive] via NET/Socket/1", "NET/Socket"),
        ("[send] via NET/AWS Libfabric/2", "NET/AWS Libfabric"),
        ("[send] via NET/IBext_v8/4/GDRDMA", "NET/IBext_v8"),
    ],
)
def test_transports_are_named_without_their_details(way: str, name: str) -> None:
    answer = nccl_log.parse(f"n1:5:6 [0] NCCL INFO Channel 00 : 0[1000] -> 1[2000] {way}\n")
    assert answer["transports"] == [name]


def test_largest_communicator_is_the_world() -> None:
    lines = [f"n:1:2 [0] NCCL INFO comm 0x{n} rank 0 nranks {n} cudaDev 0 - Init COMPLETE\n" for n in (8, 2)]
    answer = nccl_log.parse("".join(lines))
    assert answer["nranks"] == 8
    assert any("2, 8 ranks" in warning for warning in answer["warnings"])


def test_other_text_is_refused() -> None:
    with pytest.raises(Unreadable, match="looks like lscpu"):
        nccl_log.parse(fixture("lscpu_old_offline.txt"))


_READY = "NCCL version 2.20.5+cuda12.4\n" + "".join(
    f"a1:1{rank}:2 [{rank}] NCCL INFO comm 0x1 rank {rank} nranks 2 cudaDev {rank} busId 1 - Init COMPLETE\n"
    for rank in range(2)
)


@pytest.mark.parametrize(
    ("line", "verdict", "cause"),
    [
        (
            "a1:1:2 [0] graph/s.cc:9 NCCL WARN Could not find a path for pattern 4, falling back to simple order",
            "ok",
            None,
        ),
        ("a1:1:2 [0] NCCL INFO NET/IB : mlx5_0:1 Got async event : GID table change", "ok", None),
        ("a1:1:2 [0] x.cc:9 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error", "failed", "port error"),
        (
            "[rank1]:[F1 P.cpp:1] ProcessGroupNCCL's watchdog got stuck for 480 seconds without progress",
            "hang",
            "no sign of life",
        ),
        (
            "[E P.cpp:1] ProcessGroupNCCL's watchdog detected a collective timeout from another rank",
            "hang",
            "another rank",
        ),
        ("a1:1:2 [0] b.cc:9 NCCL WARN Bootstrap Root : mismatch in rank count from procs 4 : 2", "failed", "4 and 2"),
        (
            "a1:1:2 [0] s.cc:9 NCCL WARN socketPollConnect: Connect to b1<7> returned 111(Connection refused)",
            "failed",
            "refused",
        ),
        (
            "a1:1:2 [0] NCCL INFO s.cc:9 socketPollConnect: connect returned Connection refused, retrying (1/34)",
            "ok",
            None,
        ),
        ("a1:1:2 [0] s.cc:9 NCCL WARN socketTryAccept: get errno 24", "failed", "ulimit -n"),
        ("a1:1:2 [0] i.cc:9 NCCL WARN Call to ibv_reg_mr failed", "failed", "ibv_reg_mr failed"),
        ("a1:1:2 [0] s.cc:9 NCCL WARN Message truncated : received 64 bytes instead of 8", "failed", "64 bytes"),
        ("a1:1:2 [0] b.cc:9 NCCL WARN Bootstrap Root : rank 3 of 4 ranks has already checked in", "failed", "rank 3"),
        ("a1:1:2 [0] e.cc:9 NCCL WARN Broadcast : invalid root 4 (root should be below 4)", "failed", "invalid root"),
        ("a1:1:2 [0] x.cc:9 NCCL WARN HIP failure 'invalid device function'", "failed", "invalid device function"),
        ("a1:1:2 [0] ras/client_support.cc:9 NCCL WARN Call to bind failed: Address already in use", "ok", None),
        ("[1] is setting up NCCL communicator, but store->get('0') got error: Socket Timeout", "hang", "meet in time"),
        ("RuntimeError: CUDA error: device-side assert triggered", "failed", "device-side assert"),
        ("Fatal Python error: Segmentation fault", "failed", "segmentation fault"),
    ],
)
def test_line_after_a_good_start_decides(line: str, verdict: str, cause: str | None) -> None:
    answer = nccl_log.parse(_READY + line + "\n")
    assert answer["verdict"] == verdict
    assert "unknown" not in str(answer["root_cause"])
    if cause:
        assert cause in answer["root_cause"]
        assert answer["line"] == 4
    else:
        assert answer["root_cause"] is None


def test_rank_that_hears_of_a_timeout_yields_to_the_one_that_saw_it() -> None:
    heard = "[rank0]:[E1 P.cpp:1] [Rank 0] Received a dump signal due to a collective timeout from rank 1\n"
    saw = "[E P.cpp:1] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE)\n"
    answer = nccl_log.parse(_READY + heard + saw)
    assert (answer["verdict"], answer["line"]) == ("hang", 5)


def test_version_that_another_program_names_is_no_mismatch() -> None:
    answer = nccl_log.parse("built with NCCL version 2.19.3\n" + _READY)
    assert answer["version"] == "2.20.5"
    assert not any("several versions" in warning for warning in answer["warnings"])


@pytest.mark.parametrize("width", [80, 100, 120, 132])
@pytest.mark.parametrize("name", ["nccl_ok_nvlink.log", "nccl_failed_shm.log", "nccl_hang_watchdog.log"])
def test_log_that_a_terminal_broke_reads_the_same(name: str, width: int) -> None:
    text = fixture(name)
    wrapped = "\n".join(
        line[start : start + width] for line in text.split("\n") for start in range(0, max(len(line), 1), width)
    )
    whole, answer = nccl_log.parse(text), nccl_log.parse(wrapped)
    for fact in ("version", "nranks", "transports", "channels", "verdict", "root_cause"):
        assert answer[fact] == whole[fact], fact


@pytest.mark.parametrize("name", ["nccl_ok_nvlink.log", "nccl_failed_shm.log"])
def test_text_cut_anywhere_gives_no_wrong_number(name: str) -> None:
    text = fixture(name)
    whole = nccl_log.parse(text)
    for end in range(20, len(text)):
        try:
            answer = nccl_log.parse(text[:end])
        except Unreadable:
            continue
        for fact in ("version", "nranks", "channels"):
            assert answer[fact] in (None, whole[fact]), f"{fact} of {text[end - 30 : end]!r}"
        assert set(answer["transports"] or []) <= set(whole["transports"]), text[end - 30 : end]


def test_a_version_at_the_edge_of_the_screen_is_not_cut() -> None:
    message = "RuntimeError: NCCL error in: " + "x" * 50 + ", invalid usage, NCCL version 2.14.3\n"
    at = message.index("4.3")
    wrapped = message[:at] + "\n" + message[at:]
    filler = "n1:1:2 [0] NCCL INFO " + "y" * (at - 21) + "\n"
    assert nccl_log.parse(filler + wrapped)["version"] == "2.14.3"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared cases do not lie beside this checkout")
def test_shared_cases_have_their_right_answers() -> None:
    duplicate = nccl_log.parse((SHARED / "nccl_02_fail_duplicate_gpu.log").read_text())
    assert (duplicate["version"], duplicate["nranks"], duplicate["verdict"]) == ("2.22.3", 2, "failed")
    assert duplicate["root_cause"].startswith("Duplicate GPU detected")
    assert duplicate["line"] == 4
    socket = nccl_log.parse((SHARED / "nccl_12_ok_2ranks_v248_line_numbers.log").read_text())
    assert (socket["version"], socket["nranks"], socket["channels"]) == ("2.4.8", 2, 1)
    assert (socket["transports"], socket["verdict"]) == (["NET/Socket"], "ok")
