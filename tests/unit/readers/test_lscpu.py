"""The lscpu reader: what CPUs say of themselves, in three forms and many versions."""

import json
import re

import pytest
from cases import SHARED, fixture
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerando.readers import lscpu
from accelerando.readers.isa import features, mend
from accelerando.readers.text import Unreadable

KIB, MIB = 2**10, 2**20


def test_new_lscpu_sums_are_shared_out_to_single_caches() -> None:
    answer = lscpu.parse(fixture("lscpu_new_two_sockets.txt"))
    assert answer["caches"] == {
        "L1d": {"each_bytes": 48 * KIB, "instances": 32},
        "L1i": {"each_bytes": 32 * KIB, "instances": 32},
        "L2": {"each_bytes": 1280 * KIB, "instances": 32},
        "L3": {"each_bytes": 36 * MIB, "instances": 2},
    }
    assert (answer["sockets"], answer["cores"], answer["logical_online"], answer["threads_per_core"]) == (2, 32, 64, 2)
    assert answer["numa_nodes"]["1"] == [*range(16, 32), *range(48, 64)]
    assert (answer["simd"], answer["bf16"], answer["fp16"]) == ("AVX512", False, False)
    assert answer["warnings"] == []


def test_old_lscpu_prints_the_size_of_one_cache_and_does_not_say_how_many() -> None:
    answer = lscpu.parse(fixture("lscpu_old_offline.txt"))
    assert answer["caches"]["L1i"] == {"each_bytes": 64 * KIB, "instances": None}
    assert (answer["logical_online"], answer["logical_installed"]) == (8, 16)
    assert answer["simd"] == "AVX2"
    assert any("switched off" in warning for warning in answer["warnings"])


def test_sum_without_a_number_of_instances_is_not_taken_for_one_cache() -> None:
    text = fixture("lscpu_old_offline.txt").replace("32K\n", "256 KiB\n", 1)
    assert lscpu.parse(text)["caches"]["L1d"] == {"each_bytes": None, "instances": None}


def test_hybrid_cpu_has_no_equal_share_of_caches() -> None:
    answer = lscpu.parse(fixture("lscpu_hybrid.json"))
    assert (answer["cores"], answer["logical_online"]) == (12, 20)
    assert answer["caches"]["L1d"] == {"each_bytes": None, "instances": 12}
    assert answer["caches"]["L3"] == {"each_bytes": 25 * MIB, "instances": 1}
    assert any("hybrid: 8 cores have 2 threads, 4 have 1" in warning for warning in answer["warnings"])


def test_flat_and_nested_json_and_text_say_the_same() -> None:
    nested = fixture("lscpu_hybrid.json")
    pairs = re.findall(r'"field": "([^"]*)", "data": (null|"[^"]*")', nested)
    flat = json.dumps({"lscpu": [{"field": f, "data": json.loads(d)} for f, d in pairs]}, indent=3)
    text = "".join(f"{f.rstrip(':')}:   {json.loads(d) or ''}\n" for f, d in pairs)
    assert lscpu.parse(flat) == lscpu.parse(nested)
    assert lscpu.parse(text) == lscpu.parse(nested)


def test_cut_json_keeps_its_whole_entries_and_says_so() -> None:
    text = fixture("lscpu_hybrid.json")
    answer = lscpu.parse(text[: text.index('"Socket(s)')])
    assert answer["model"] == "12th Gen Intel(R) Core(TM) i7-12700"
    assert answer["cores"] is None
    assert any("damaged" in warning for warning in answer["warnings"])


def test_arm_cpuinfo_names_its_core_by_part_number() -> None:
    answer = lscpu.parse(fixture("cpuinfo_arm.txt"))
    assert (answer["vendor"], answer["model"], answer["logical_online"]) == ("ARM", "Neoverse-N1", 2)
    assert (answer["simd"], answer["bf16"], answer["fp16"]) == ("NEON", False, True)
    assert (answer["sockets"], answer["cores"], answer["caches"], answer["numa_nodes"]) == (None, None, None, None)


def x86_cpuinfo(packages: int, cores: int, threads: int) -> str:
    blocks = []
    for cpu in range(packages * cores * threads):
        package, core = cpu // threads // cores, cpu // threads % cores
        blocks.append(
            f"processor\t: {cpu}\nvendor_id\t: GenuineIntel\nmodel name\t: Made Up CPU\ncache size\t: 1024 KB\n"
            f"physical id\t: {package}\nsiblings\t: {cores * threads}\ncore id\t\t: {core}\ncpu cores\t: {cores}\n"
            f"flags\t\t: fpu sse sse2 avx avx2 arat\nbogomips\t: 4000.00\npower management:\n"
        )
    return "\n".join(blocks) + "\n"


@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 2))
@settings(max_examples=30)
def test_x86_cpuinfo_counts_sockets_and_cores(packages: int, cores: int, threads: int) -> None:
    answer = lscpu.parse(x86_cpuinfo(packages, cores, threads))
    assert (answer["sockets"], answer["cores"], answer["threads_per_core"]) == (packages, packages * cores, threads)
    assert answer["logical_online"] == packages * cores * threads
    assert answer["logical_installed"] is None
    assert answer["caches"] is None  # "cache size" does not say of which level


def test_head_of_cpuinfo_does_not_pass_for_all_of_it() -> None:
    text = x86_cpuinfo(1, 8, 2)
    first = text[: text.index("processor\t: 1\n")]
    answer = lscpu.parse(first)
    assert answer["logical_online"] is None
    assert answer["cores"] is None
    assert answer["simd"] == "AVX2"
    assert any("only 1 are listed" in warning for warning in answer["warnings"])


def test_two_kinds_of_arm_core_are_added_up() -> None:
    answer = lscpu.parse(
        "Architecture: aarch64\nCPU(s): 6\nOn-line CPU(s) list: 0-5\nVendor ID: ARM\n"
        "Model name: Cortex-A53\nThread(s) per core: 1\nCore(s) per socket: 4\nSocket(s): 1\n"
        "Model name: Cortex-A72\nThread(s) per core: 1\nCore(s) per socket: 2\nSocket(s): 1\n"
        "Flags: fp asimd evtstrm crc32\n"
    )
    assert (answer["model"], answer["cores"]) == ("Cortex-A53 + Cortex-A72", 6)


def test_flags_wrapped_at_any_width_are_joined_again() -> None:
    whole = fixture("lscpu_new_two_sockets.txt")
    head, flags, tail = re.split(r"(Flags: .*\n)", whole)
    for width in range(30, 160, 7):
        wrapped = "\n\t\t".join(flags[start : start + width] for start in range(0, len(flags) - 1, width)) + "\n"
        answer = lscpu.parse(head + wrapped + tail)
        assert (answer["simd"], answer["bf16"], answer["fp16"]) == ("AVX512", False, False), width


def test_broken_word_is_joined_only_where_that_makes_a_known_flag() -> None:
    assert mend([["fp", "asimd", "js"], ["cvt", "sve"]]) == (["fp", "asimd", "jscvt", "sve"], True)
    assert mend([["avx", "avx2"], ["avx512f"]]) == (["avx", "avx2", "avx512f"], False)
    assert mend([["sve2", "sve"], ["bf16"]]) == (["sve2", "sve", "bf16"], False)  # both halves are flags
    assert mend([["sve", "sve"], ["bf16"]]) == (["sve", "svebf16"], True)  # unless one stands there twice


def test_cut_flags_prove_what_they_show_and_nothing_else() -> None:
    text = fixture("lscpu_new_two_sockets.txt")
    cut = text[: text.index("avx512_vnni") - 1]
    answer = lscpu.parse(cut)
    assert (answer["simd"], answer["bf16"], answer["fp16"]) == (None, None, None)
    assert any("cut" in warning for warning in answer["warnings"])


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu sse sse2 sse4_1", ("SSE4.1", False, False)),
        ("fpu sse2 avx avx2 f16c", ("AVX2", False, False)),  # f16c converts and does not compute
        ("fpu sse2 avx2 avx512f avx512_bf16", ("AVX512", True, False)),
        ("fpu sse2 avx2 avx512f amx_tile amx_bf16 avx512_fp16", ("AVX512+AMX", True, True)),
        ("fp asimd", ("NEON", False, False)),
        ("fp asimd fphp", ("NEON", False, False)),  # scalar half precision alone
        ("fp asimd sve svebf16 fphp asimdhp", ("SVE", True, True)),
        ("fp asimd sve sve2 bf16", ("SVE2", True, False)),
    ],
)
def test_features_follow_from_flags(flags: str, expected: tuple[str, bool, bool]) -> None:
    found = features(flags.split())
    assert (found.simd, found.has_bf16, found.has_fp16) == expected


def test_lost_line_breaks_are_found_again() -> None:
    text = fixture("lscpu_old_offline.txt")
    assert lscpu.parse(text.replace("\n", " ").rstrip() + "\n") == lscpu.parse(text)


def test_labels_in_another_language_are_unknown_and_the_way_out_is_named() -> None:
    answer = lscpu.parse(
        "CPU(s):                 16\nListe der Online-CPU(s): 0-15\nThread(s) pro Kern:     2\n"
        "Markierungen:           fpu vme de pse sse sse2 avx avx2 xsaveopt arat\nBogoMIPS:   1.0\n"
    )
    assert (answer["simd"], answer["logical_installed"]) == ("AVX2", 16)
    assert [answer[key] for key in ("cores", "logical_online", "threads_per_core")] == [None] * 3
    assert any("LC_ALL=C" in warning for warning in answer["warnings"])


@pytest.mark.parametrize("text", ["Architecture: x86_64\n", "hello\n", "node1 slots=2\n", '{"nbformat": 4}\n'])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        lscpu.parse(text)


def test_refusal_names_the_kind_it_looks_like() -> None:
    with pytest.raises(Unreadable, match="looks like topo"):
        lscpu.parse(fixture("topo_hgx.txt"))


_TWO_KINDS = """Architecture:            aarch64
CPU(s):                  6
  On-line CPU(s) list:   0-5
Vendor ID:               ARM
  Model name:            Cortex-A53
    Thread(s) per core:  1
    Core(s) per socket:  4
    Socket(s):           1
  Model name:            Cortex-A72
    Thread(s) per core:  1
    Core(s) per socket:  2
    Socket(s):           1
Caches (sum of all):
  L1d:                   192 KiB (6 instances)
  L3:                    2 MiB (1 instance)
"""


def test_caches_of_two_kinds_of_core_are_not_shared_out_evenly() -> None:
    answer = lscpu.parse(_TWO_KINDS)
    assert answer["cores"] == 6
    assert answer["caches"] == {
        "L1d": {"each_bytes": None, "instances": 6},
        "L3": {"each_bytes": 2 * 2**20, "instances": 1},
    }


def test_cores_that_contradict_the_logical_cpus_are_unknown() -> None:
    answer = lscpu.parse(
        "CPU(s): 8\nOn-line CPU(s) list: 0-7\nThread(s) per core: 1\nCore(s) per socket: 2\nSocket(s): 3\n"
    )
    assert answer["cores"] is None
    assert any("do not make 8" in warning for warning in answer["warnings"])


def test_flags_of_arm_may_end_in_cpuid() -> None:
    head = "Architecture: aarch64\nCPU(s): 4\nThread(s) per core: 1\nNUMA node(s): 1\nVendor ID: ARM\n"
    answer = lscpu.parse(head + "Flags: fp asimd evtstrm crc32 cpuid\n")
    assert (answer["simd"], answer["bf16"], answer["fp16"]) == ("NEON", False, False)


def test_wrapped_flags_are_whole_when_the_last_line_has_room_left() -> None:
    head = "Architecture: aarch64\nCPU(s): 4\n  Thread(s) per core: 1\nVendor ID: ARM\n"
    lines = [
        "    Flags: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimd",
        "hp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 asimddp sha512 dit us",
        "cat bf16 bti",
    ]
    whole = lscpu.parse(head + "\n".join(lines) + "\n")
    assert (whole["simd"], whole["bf16"], whole["fp16"]) == ("NEON", True, True)
    cut = lscpu.parse(head + "\n".join(lines[:2]) + "\n")
    assert (cut["simd"], cut["bf16"], cut["fp16"]) == (None, None, True)


def test_mainframe_counts_its_sockets_in_drawers_and_books() -> None:
    answer = lscpu.parse(
        "Architecture: s390x\nCPU(s): 16\nThread(s) per core: 2\nCore(s) per socket: 2\nSocket(s) per book: 2\n"
        "Book(s) per drawer: 2\nDrawer(s): 1\nVendor ID: IBM/S390\n"
    )
    assert (answer["sockets"], answer["cores"]) == (4, 8)


@pytest.mark.parametrize(
    "block",
    [
        "processor\t: {n}\nhart\t\t: {n}\nisa\t\t: rv64imafdc\n\n",
        "processor\t: {n}\ncpu\t\t: POWER8\nclock\t\t: 3000MHz\n\n",
    ],
)
def test_cpuinfo_of_other_architectures_counts_its_cpus(block: str) -> None:
    answer = lscpu.parse("".join(block.format(n=number) for number in range(3)))
    assert answer["logical_online"] == 3
    assert answer["simd"] is None


def test_superscript_is_no_digit() -> None:
    answer = lscpu.parse("CPU(s): 8\nThread(s) per core: 1\nCore(s) per socket: \u00b28\nSocket(s): 1\nVendor ID: X\n")
    assert answer["cores"] is None


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared cases do not lie beside this checkout")
def test_shared_cases_have_their_right_answers() -> None:
    spr = lscpu.parse((SHARED / "11_lscpu_spr_xeon8481c_amx.txt").read_text())
    assert (spr["sockets"], spr["cores"], spr["logical_online"], spr["threads_per_core"]) == (2, 112, 224, 2)
    assert spr["caches"]["L1d"] == {"each_bytes": 48 * KIB, "instances": 112}
    assert spr["caches"]["L2"] == {"each_bytes": 2 * MIB, "instances": 112}
    assert spr["caches"]["L3"] == {"each_bytes": 105 * MIB, "instances": 2}
    assert (spr["simd"], spr["bf16"], spr["fp16"]) == ("AVX512+AMX", True, True)
    grace = lscpu.parse((SHARED / "18_lscpu_grace_wrapped_flags_8numa_empty.txt").read_text())
    assert (grace["model"], grace["sockets"], grace["cores"]) == ("Neoverse-V2", 1, 72)
    assert [bool(cpus) for cpus in grace["numa_nodes"].values()] == [True] + [False] * 7
    assert (grace["simd"], grace["bf16"], grace["fp16"]) == ("SVE2", True, True)
    hybrid = lscpu.parse((SHARED / "20_lscpu_i9_13900k_hybrid_no_flags.txt").read_text())
    assert (hybrid["cores"], hybrid["logical_online"]) == (24, 32)
    assert [hybrid[key] for key in ("simd", "bf16", "fp16", "caches", "numa_nodes")] == [None] * 5
    assert any("8 cores have 2 threads, 16 have 1" in warning for warning in hybrid["warnings"])
