"""The topology reader: links, islands, the best ring, NUMA and network cards."""

import itertools
from collections.abc import Callable

import pytest
from cases import SHARED, fixture
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerando.readers import topo
from accelerando.readers.rings import best_ring, islands
from accelerando.readers.text import Unreadable


def matrix(links: dict[tuple[int, int], str], gpus: int) -> str:
    lines = ["\t" + "\t".join(f"GPU{gpu}" for gpu in range(gpus)) + "\tCPU Affinity"]
    for row in range(gpus):
        cells = [" X " if row == column else links[min(row, column), max(row, column)] for column in range(gpus)]
        lines.append("\t".join([f"GPU{row}", *cells, "0-31"]))
    return "\n".join(lines) + "\n"


def test_nvswitch_machine_is_one_island() -> None:
    answer = topo.parse(fixture("topo_hgx.txt"))
    assert answer["gpus"] == 4
    assert answer["links"] == [[a, b, "NV18"] for a, b in itertools.combinations(range(4), 2)]
    assert answer["nvlink_islands"] == [[0, 1, 2, 3]]
    assert answer["best_ring"] == {"order": [0, 1, 2, 3], "slowest": "NV18"}
    assert answer["numa"] == {"0": 0, "1": 0, "2": 1, "3": 1}


def test_nearest_network_cards_carry_the_names_of_the_legend() -> None:
    nearest = topo.parse(fixture("topo_hgx.txt"))["nearest_nics"]
    assert nearest == {"0": ["mlx5_0"], "1": ["mlx5_0", "mlx5_bond_0"], "2": ["mlx5_1"], "3": ["mlx5_1"]}


def test_rocm_matrix_counts_xgmi_as_the_direct_link() -> None:
    answer = topo.parse(fixture("topo_rocm.txt"))
    assert answer["nvlink_islands"] == [[0, 1], [2, 3]]
    assert answer["best_ring"] == {"order": [0, 1, 3, 2], "slowest": "XGMI"}
    assert answer["numa"] == {"0": 0, "1": 0, "2": 1, "3": None}


def rocm(gpus: int) -> str:
    """Eight GPUs all joined by XGMI, half of the pairs through another GPU, as ``rocm-smi --showtopo`` shows them."""

    def table(title: str, cell: Callable[[int, int], object]) -> str:
        head = "       " + "".join(f"GPU{gpu}".ljust(13) for gpu in range(gpus))
        rows = ["GPU" + f"{a}".ljust(4) + "".join(str(cell(a, b)).ljust(13) for b in range(gpus)) for a in range(gpus)]
        return "\n".join([f"==== {title} between two GPUs ====", head, *rows, "", ""])

    weight = table("Weight", lambda a, b: 0 if a == b else 15 if (a ^ b) in (1, 2, 4) else 30)
    return weight + table("Link Type", lambda a, b: 0 if a == b else "XGMI" if a // 4 == b // 4 else "PCIE")


@pytest.mark.parametrize("width", range(50, 116))
def test_wrapped_rocm_matrix_is_joined_or_unknown_but_never_wrong(width: int) -> None:
    text = rocm(8)
    wrapped = "\n".join(
        line[start : start + width] for line in text.split("\n") for start in range(0, max(len(line), 1), width)
    )
    whole = topo.parse(text)
    answer = topo.parse(wrapped)
    assert answer["gpus"] == 8
    assert all(link in whole["links"] for link in answer["links"])
    assert answer["best_ring"] in (None, whole["best_ring"])
    assert answer["nvlink_islands"] in (None, whole["nvlink_islands"])
    assert any("different weights (15, 30)" in warning for warning in whole["warnings"])


def test_amd_smi_names_gpus_by_address() -> None:
    ids = ["0000:05:00.0", "0000:26:00.0", "0000:46:00.0"]
    links = [["SELF", "XGMI", "PCIE"], ["XGMI", "SELF", "PCIE"], ["PCIE", "PCIE", "SELF"]]

    def table(title: str, rows: list[list[str]]) -> str:
        return "\n".join([f"{title} TABLE:", " ".join(ids), *(" ".join(row) for row in rows), "", ""])

    access = [[name, *["ENABLED"] * 3] for name in ids]
    text = table("ACCESS", access) + table("LINK TYPE", [[name, *row] for name, row in zip(ids, links, strict=True)])
    answer = topo.parse(text + table("NUMA BW", [[name, "N/A", "N/A", "N/A"] for name in ids]))
    assert answer["links"] == [[0, 1, "XGMI"], [0, 2, "PCIE"], [1, 2, "PCIE"]]
    assert answer["nvlink_islands"] == [[0, 1]]
    assert any("1 is 0000:26:00.0" in warning for warning in answer["warnings"])


@given(st.integers(3, 6), st.data())
@settings(max_examples=60)
def test_best_ring_is_the_best_of_all_rings(gpus: int, data: st.DataObject) -> None:
    pairs = list(itertools.combinations(range(gpus), 2))
    speed = {pair: float(data.draw(st.integers(0, 4))) for pair in pairs}
    order, is_proven = best_ring(gpus, speed)

    def hops(ring: tuple[int, ...]) -> list[float]:
        return sorted(speed[min(a, b), max(a, b)] for a, b in zip(ring, ring[1:] + ring[:1], strict=True))

    rings = [(0, *rest) for rest in itertools.permutations(range(1, gpus))]
    best = max(hops(ring) for ring in rings)
    assert is_proven
    assert tuple(order) == min(ring for ring in rings if hops(ring) == best)


def test_ring_of_sixteen_equal_gpus_is_proven_without_trying_all() -> None:
    speed = dict.fromkeys(itertools.combinations(range(16), 2), 6.0)
    order, is_proven = best_ring(16, speed)
    assert sorted(order) == list(range(16))
    assert is_proven


def test_ring_too_large_to_prove_is_called_so() -> None:
    links = {
        pair: "NV1" if abs(pair[0] - pair[1]) in (1, 13) else "SYS" for pair in itertools.combinations(range(14), 2)
    }
    del links[0, 13]
    links[0, 13] = "PIX"
    links[0, 7] = "NV4"
    answer = topo.parse(matrix(links, 14))
    assert sorted(answer["best_ring"]["order"]) == list(range(14))


@given(st.integers(2, 7), st.data())
@settings(max_examples=60)
def test_islands_are_fully_linked_and_none_can_grow(nodes: int, data: st.DataObject) -> None:
    strength = {p: 1.0 for p in itertools.combinations(range(nodes), 2) if data.draw(st.booleans())}
    groups, _ = islands(nodes, strength)
    members = [node for group in groups for node in group]
    assert len(members) == len(set(members))
    for group in groups:
        assert all(pair in strength for pair in itertools.combinations(group, 2))
    alone = [node for node in range(nodes) if node not in members]
    assert not any(pair in strength for pair in itertools.combinations(alone, 2))


def test_without_nvlink_there_are_no_islands() -> None:
    answer = topo.parse(matrix({(0, 1): "SYS"}, 2))
    assert answer["nvlink_islands"] == []
    assert answer["best_ring"] == {"order": [0, 1], "slowest": "SYS"}
    assert answer["numa"] is None
    assert answer["nearest_nics"] is None


def test_missing_row_is_read_from_the_other_side() -> None:
    lines = fixture("topo_hgx.txt").split("\n")
    whole = topo.parse(fixture("topo_hgx.txt"))
    assert topo.parse("\n".join(lines[:4]) + "\n")["links"] == whole["links"]
    cut = topo.parse("\n".join(lines[:3]) + "\n")
    assert cut["best_ring"] is None
    assert cut["nvlink_islands"] is None
    assert [2, 3, "NV18"] not in cut["links"]


@pytest.mark.parametrize("width", range(24, 120, 3))
def test_wrapped_matrix_is_joined_or_unknown_but_never_wrong(width: int) -> None:
    text = fixture("topo_hgx.txt").expandtabs(8)
    wrapped = "\n".join(
        line[start : start + width] for line in text.split("\n") for start in range(0, max(len(line), 1), width)
    )
    whole = topo.parse(text)
    try:
        answer = topo.parse(wrapped)
    except Unreadable:
        return
    assert answer["links"] == whole["links"]
    assert answer["best_ring"] == whole["best_ring"]
    for gpu, node in (answer["numa"] or {}).items():
        assert node in (None, whole["numa"][gpu])


@pytest.mark.parametrize("width", range(70, 140, 7))
def test_wrapped_header_of_sixteen_gpus_is_joined_at_the_right_places(width: int) -> None:
    text = matrix(dict.fromkeys(itertools.combinations(range(16), 2), "NV6"), 16).expandtabs(8)
    wrapped = "\n".join(
        line[start : start + width] for line in text.split("\n") for start in range(0, max(len(line), 1), width)
    )
    assert topo.parse(wrapped)["links"] == topo.parse(text)["links"]


def test_rows_that_contradict_each_other_count_by_the_slower_link() -> None:
    text = matrix({(0, 1): "NV4"}, 2).replace("GPU1\tNV4", "GPU1\tSYS")
    answer = topo.parse(text)
    assert answer["links"] == [[0, 1, "SYS"]]
    assert any("the other" in warning for warning in answer["warnings"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("GPU0\t X \tNV1\nGPU1\tNV1\t X \n", "header"),
        ("\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n", "topo -p2p"),
        ("\tGPU0\tGPU1\nGPU0\tNV1\tX\nGPU1\tX\tNV1\n", "X is in another column"),
        ("\tGPU0\tGPU2\nGPU0\tX\tNV1\n", "in order"),
        ("\tGPU0\tGPU1\n", "no rows"),
        ("nothing here\n", "not topo"),
    ],
)
def test_damage_beyond_repair_is_refused_with_its_reason(text: str, message: str) -> None:
    with pytest.raises(Unreadable, match=message):
        topo.parse(text)


def test_two_matrices_in_one_text_are_not_mixed() -> None:
    text = (
        matrix({(0, 1): "PHB"}, 2)
        + "\nthe other machine:\n"
        + matrix(dict.fromkeys(itertools.combinations(range(4), 2), "NV4"), 4)
    )
    answer = topo.parse(text)
    assert (answer["gpus"], answer["links"]) == (2, [[0, 1, "PHB"]])
    assert any("second matrix" in warning for warning in answer["warnings"])


def test_sentence_about_a_gpu_is_no_header() -> None:
    text = "GPU0 seems to be fine.\nGPU0 and GPU1 are slow\n\n" + matrix({(0, 1): "NODE"}, 2)
    assert topo.parse(text)["links"] == [[0, 1, "NODE"]]


def test_markdown_table_reads_as_the_matrix_it_shows() -> None:
    text = (
        "| | GPU0 | GPU1 | CPU Affinity | NUMA Affinity |\n|---|:-:|:-:|---|---|\n"
        "| GPU0 | X | NV4 | 0-7 | 0 |\n| GPU1 | NV4 | X | 8-15 | 1 |\n"
    )
    answer = topo.parse(text)
    assert (answer["links"], answer["numa"]) == ([[0, 1, "NV4"]], {"0": 0, "1": 1})


def test_columns_that_run_into_one_another_are_refused() -> None:
    with pytest.raises(Unreadable, match="tabs"):
        topo.parse(matrix({(0, 1): "NV4"}, 2).replace("\t", ""))


@pytest.mark.parametrize("end", range(60, 700, 7))
def test_text_cut_anywhere_gives_no_wrong_link(end: int) -> None:
    text = fixture("topo_hgx.txt")
    whole = topo.parse(text)
    try:
        answer = topo.parse(text[:end])
    except Unreadable:
        return
    assert all(link in whole["links"] for link in answer["links"])


@pytest.mark.parametrize("width", range(20, 60))
def test_wrapped_affinities_give_no_wrong_numa_node(width: int) -> None:
    text = (
        "        GPU0    GPU1    CPU Affinity    NUMA Affinity\n"
        "GPU0     X      NV12    48-63,176-191   13\nGPU1    NV12     X      16-31,144-159   12\n"
    )
    wrapped = "\n".join(
        line[start : start + width] for line in text.split("\n") for start in range(0, max(len(line), 1), width)
    )
    numa = topo.parse(wrapped)["numa"] or {}
    assert all(node in (None, {"0": 13, "1": 12}[gpu]) for gpu, node in numa.items())


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared cases do not lie beside this checkout")
def test_shared_cases_have_their_right_answers() -> None:
    cube = topo.parse((SHARED / "topo_02_dgx1_v100_cubemesh_nic_reordered.txt").read_text())
    assert sum(name.startswith("NV") for _, _, name in cube["links"]) == 16
    assert cube["nvlink_islands"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert cube["best_ring"] == {"order": [0, 3, 2, 1, 5, 6, 7, 4], "slowest": "NV2"}
    assert cube["numa"] is None
    assert [cube["nearest_nics"][gpu] for gpu in "0246"] == [["mlx5_0"], ["mlx5_1"], ["mlx5_2"], ["mlx5_3"]]
    assert any("2 groups" in warning for warning in cube["warnings"])
    pair = topo.parse((SHARED / "topo_06_2xa100_pcie_node.txt").read_text())
    assert (pair["links"], pair["nvlink_islands"], pair["numa"]) == ([[0, 1, "NODE"]], [], {"0": 1, "1": 1})
    four = topo.parse((SHARED / "topo_07_4xa100_pcie_nv12_pairs.txt").read_text())
    assert four["nvlink_islands"] == [[0, 1], [2, 3]]
    assert four["best_ring"]["slowest"] == "SYS"
    assert four["numa"] == {"0": 0, "1": 0, "2": 1, "3": 1}
