"""The reader of NCCL's topology XML."""

from collections.abc import Callable

import pytest
from cases import SHARED, fixture

from accelerando.readers import topo_xml
from accelerando.readers.text import Unreadable


def test_dump_says_gpus_cards_switches_and_nvlinks() -> None:
    answer = topo_xml.parse(fixture("topo_dump.xml"))
    assert answer == {
        "numa_nodes": 2,
        "gpus": 2,
        "nics": 2,
        "pci_switches": 1,
        "nvlinks": [[0, 1, 4]],
        "warnings": [],
    }


def test_gpus_behind_nvswitches_are_linked_pairwise() -> None:
    text = fixture("topo_dump.xml")
    text = text.replace('0000:48:00.0" count', '0000:c4:00.0" count').replace(
        '0000:07:00.0" count', '0000:c4:00.0" count'
    )
    text = text.replace('tclass="0x030200"', 'tclass="0x068000"')
    answer = topo_xml.parse(text)
    assert answer["nvlinks"] == [[0, 1, 4]]
    assert any("NVSwitch" in warning for warning in answer["warnings"])


def test_file_without_gpu_elements_does_not_say_whether_there_are_nvlinks() -> None:
    text = '<system version="1"><cpu numaid="0"><pci busid="1:0:0.0" class="0x030200"/></cpu></system>'
    assert topo_xml.parse(text)["nvlinks"] is None


def test_gpu_elements_without_links_say_there_are_none() -> None:
    text = (
        '<system version="1"><cpu numaid="0"><pci busid="0:1:0.0" class="0x030200"><gpu dev="0"/></pci></cpu></system>'
    )
    assert topo_xml.parse(text)["nvlinks"] == []


def test_unknown_numa_node_is_not_counted() -> None:
    text = '<system version="1"><cpu numaid="-1"><pci busid="0:1:0.0" class="0x030200"/></cpu></system>'
    assert topo_xml.parse(text)["numa_nodes"] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<!DOCTYPE s [<!ENTITY a "x"><!ENTITY b "&a;&a;">]>\n<system version="1">&b;</system>', "entities"),
        ('<!DOCTYPE s SYSTEM "file:///etc/passwd">\n<system version="1"><cpu numaid="0"/></system>', "entities"),
        ("<system>" + "<pci>" * 20_000 + "</pci>" * 20_000 + "</system>", "deep"),
        ("<graphs version='1'></graphs>", "graph file"),
        ("<html><body>no</body></html>", "not topo-xml"),
        ("<system version='1'></system>", "no topology"),
        ("<system version='1'>\n<cpu numaid='0'>\n</system>\n", "damaged"),
    ],
)
def test_bombs_and_other_xml_are_refused(text: str, message: str) -> None:
    with pytest.raises(Unreadable, match=message):
        topo_xml.parse(text)


def test_cut_file_is_refused_with_the_line() -> None:
    lines = fixture("topo_dump.xml").split("\n")
    with pytest.raises(Unreadable, match="cut off") as refusal:
        topo_xml.parse("\n".join(lines[:9]) + "\n")
    assert refusal.value.line in (9, 10)


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_wrapped_xml_is_joined_or_refused_but_never_wrong(width: int) -> None:
    text = fixture("topo_dump.xml")
    wrapped = "\n".join(
        line[start : start + width] for line in text.split("\n") for start in range(0, max(len(line), 1), width)
    )
    whole = topo_xml.parse(text)
    try:
        answer = topo_xml.parse(wrapped)
    except Unreadable:
        return
    assert {**answer, "warnings": []} == {**whole, "warnings": []}


@pytest.mark.parametrize(
    ("damage", "warning"),
    [
        (lambda text: text + text, "second topology"),
        (lambda text: text.replace("<", "&lt;").replace(">", "&gt;"), "HTML"),
        (lambda text: '<!-- ours -->\n<?xml version="1.0" encoding="utf-8"?>\n' + text, ""),
    ],
)
def test_pasted_twice_escaped_or_with_a_comment_on_top_it_reads_the_same(
    damage: Callable[[str], str], warning: str
) -> None:
    text = fixture("topo_dump.xml")
    whole, answer = topo_xml.parse(text), topo_xml.parse(damage(text[text.index("<system") :]))
    assert {**answer, "warnings": []} == {**whole, "warnings": []}
    assert any(warning in said for said in answer["warnings"]) or not warning


def test_nvlinks_to_a_cpu_do_not_link_the_gpus() -> None:
    gpu = (
        '<pci busid="0000:0{n}:00.0" class="0x030200"><gpu dev="{n}"><nvlink target="0000:00:00.0" count="3"'
        ' tclass="{tclass}"/></gpu></pci>'
    )

    def links(tclass: str) -> list[list[int]]:
        inside = "".join(gpu.format(n=number, tclass=tclass) for number in (1, 2))
        nvlinks: list[list[int]] = topo_xml.parse(f'<system version="1"><cpu numaid="0">{inside}</cpu></system>')[
            "nvlinks"
        ]
        return nvlinks

    assert links("0x068001") == []
    assert links("0x068000") == [[1, 2, 3]]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared cases do not lie beside this checkout")
def test_shared_cases_have_their_right_answers() -> None:
    azure = topo_xml.parse((SHARED / "xml_azure_ndv4-topo.xml").read_text())
    assert azure == {"numa_nodes": 4, "gpus": 8, "nics": 8, "pci_switches": 4, "nvlinks": None, "warnings": []}
    aws = topo_xml.parse((SHARED / "xml_aws_p4d-24xl-topo.xml").read_text())
    assert aws == {"numa_nodes": 2, "gpus": 8, "nics": 4, "pci_switches": 4, "nvlinks": None, "warnings": []}


@pytest.mark.parametrize("width", range(50, 130))
def test_wrapped_file_is_joined_or_refused_but_never_wrong(width: int) -> None:
    text = fixture("topo_dump.xml")
    wrapped = "\n".join(
        line[start : start + width] for line in text.split("\n") for start in range(0, max(len(line), 1), width)
    )
    whole = topo_xml.parse(text)
    try:
        answer = topo_xml.parse(wrapped)
    except Unreadable:
        return
    assert {**answer, "warnings": None} == {**whole, "warnings": None}


def test_typographic_quotes_are_replaced() -> None:
    text = fixture("topo_dump.xml")
    answer = topo_xml.parse(text.replace('"', "”"))
    assert {**answer, "warnings": None} == {**topo_xml.parse(text), "warnings": None}
    assert any("quotes" in warning for warning in answer["warnings"])
