"""What CPU feature flags say: the SIMD level, and 16-bit arithmetic in hardware."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

_X86_LEVELS = (
    ("avx512f", "AVX512"),
    ("avx2", "AVX2"),
    ("avx", "AVX"),
    ("sse4_2", "SSE4.2"),
    ("sse4_1", "SSE4.1"),
    ("ssse3", "SSSE3"),
    ("sse2", "SSE2"),
)
_ARM_LEVELS = (("sve2", "SVE2"), ("sve", "SVE"), ("asimd", "NEON"), ("neon", "NEON"))

_X86_EARLY = """
fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush dts acpi mmx fxsr sse ss ht tm pbe
syscall nx mmxext fxsr_opt pdpe1gb rdtscp constant_tsc art arch_perfmon pebs bts rep_good nopl xtopology nonstop_tsc
cpuid aperfmperf tsc_known_freq pni pclmulqdq dtes64 monitor ds_cpl smx est tm2 sdbg fma cx16 xtpr pdcm pcid dca
sse4_1 sse4_2 x2apic movbe popcnt tsc_deadline_timer aes xsave avx f16c rdrand hypervisor abm 3dnowprefetch
cpuid_fault epb cat_l3 cat_l2 cdp_l3 cdp_l2 invpcid_single intel_ppin ssbd mba ibrs ibpb stibp ibrs_enhanced
tpr_shadow vnmi flexpriority ept vpid ept_ad fsgsbase tsc_adjust bmi1 hle avx2 smep bmi2 erms invpcid rtm cqm mpx
rdt_a avx512f avx512dq rdseed adx smap avx512ifma clflushopt clwb intel_pt avx512cd sha_ni avx512bw xsaveopt xsavec
xgetbv1
"""
_X86_LATE = """
sse2 ssse3 lm vmx svm lahf_lm cmp_legacy extapic cr8_legacy sse4a misalignsse osvw ibs skinit wdt tce topoext
perfctr_core perfctr_nb bpext perfctr_llc mwaitx cpb hw_pstate vmmcall xtopology extd_apicid extd_apic amd_dcm
avx512vl avx512er avx512pf xsaves cqm_llc cqm_occup_llc cqm_mbm_total cqm_mbm_local split_lock_detect avx_vnni
avx512_bf16 avx_vnni_int8 avx_vnni_int16 avx_ifma avx_ne_convert amx_fp16 amx_complex amx_tile amx_int8 amx_bf16
avx512_fp16 avx512_vp2intersect avx512vbmi avx512_vbmi2 avx512_vnni avx512_bitalg avx512_vpopcntdq avx512_4vnniw
avx512_4fmaps user_shstk wbnoinvd dtherm ida arat pln pts hwp hwp_notify hwp_act_window hwp_epp hwp_pkg_req hfi umip
pku ospke waitpkg gfni vaes vpclmulqdq tme la57 rdpid bus_lock_detect cldemote movdiri movdir64b enqcmd fsrm
md_clear serialize tsxldtrk pconfig arch_lbr ibt pti kaiser clzero irperf xsaveerptr rdpru cppc npt lbrv svm_lock
nrip_save tsc_scale vmcb_clean flushbyasid decodeassists pausefilter pfthreshold avic v_vmsave_vmload vgif
v_spec_ctrl overflow_recov succor sme sev sev_es sev_snp vnmi amd_lbr_v2 perfmon_v2 fma4 xop tbm lwp nodeid_msr fsrs
fzrm fsrc spec_ctrl ssbd virt_ssbd intel_stibp swap_lbr sgx sgx_lc keylocker aeskle avx10_1 x2avic pcommit eagerfpu
tsc_reliable up pebs ibrs_fw retpoline
"""
_ARM = """
fp asimd evtstrm pmull sha1 sha2 crc32 atomics fphp asimdhp asimdrdm jscvt fcma lrcpc dcpop sha3 sm3 sm4 asimddp
sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs sb paca pacg dcpodp sve2 sveaes svepmull svebitperm svesha3 svesm4
flagm2 frint svei8mm svef32mm svef64mm svebf16 i8mm bf16 dgh rng bti mte ecv afp rpres mte3 sme smei16i64 smef64f64
smei8i32 smef16f32 smeb16f32 smef32f32 smefa64 wfxt ebf16 sveebf16 cssc rprfm sve2p1 sme2 sme2p1 half thumb fastmult
vfp edsp thumbee neon vfpv3 vfpv4 tls idiva idivt vfpd32 lpae hbc mops lrcpc3 lse128
"""

# The kernel lists x86 flags in a fixed order. The early ones stand before or among the AVX-512 flags and never end the
# whole list of a CPU with AVX; a list that ends in one of them was cut.
X86_NEVER_LAST = frozenset(_X86_EARLY.split())
# A list that ends in one of these is whole, even where no line end follows.
ALWAYS_LAST = frozenset(("arch_capabilities", "flush_l1d", "debug_swap", "smca", "ibpb_exit_to_user"))
KNOWN_FLAGS = X86_NEVER_LAST | ALWAYS_LAST | frozenset(_X86_LATE.split()) | frozenset(_ARM.split())


@dataclass(frozen=True)
class Features:
    """What the flags say; None where they do not reach."""

    simd: str | None
    has_bf16: bool | None
    has_fp16: bool | None


def features(flags: Collection[str] | None, *, is_complete: bool = True) -> Features:
    """Read SIMD level, bfloat16 and half precision from CPU flags.

    Only arithmetic counts: ``f16c`` converts half precision and does not compute in it.

    Args:
        flags: Words of the kernel's ``flags`` or ``Features`` line; None when it is absent.
        is_complete: False when the list was cut: then a missing flag proves nothing.
    """
    if not flags:
        return Features(None, None, None)
    have = set(flags)
    absent = False if is_complete else None
    if have & {"fpu", "sse", "sse2", "cmov", "lm", "mmx"}:
        simd = _x86_level(have)
        bf16 = bool(have & {"avx512_bf16", "amx_bf16"}) or absent
        fp16 = bool(have & {"avx512_fp16", "amx_fp16"}) or absent
    elif have & {"asimd", "neon", "fp", "half", "thumb", "evtstrm"}:
        simd = next((level for flag, level in _ARM_LEVELS if flag in have), None)
        bf16 = bool(have & {"bf16", "svebf16"}) or absent
        fp16 = {"fphp", "asimdhp"} <= have or absent
    else:
        return Features(None, None, None)
    if not is_complete and simd not in ("AVX512+AMX", "SVE2"):
        simd = None
    return Features(simd, bf16, fp16)


def _x86_level(have: set[str]) -> str | None:
    level = next((name for flag, name in _X86_LEVELS if flag in have), None)
    return f"{level}+AMX" if level and "amx_tile" in have else level


def mend(pieces: list[list[str]]) -> tuple[list[str], bool]:
    """Join a flag list that a terminal wrapped, inside words too.

    Args:
        pieces: The words of each line.

    Returns:
        All flags, and whether a word had been broken. A break is closed when only the joined word is a known flag,
        or when both halves are known but one of them would then stand in the list twice (the kernel never does that).
    """
    pieces = [piece for piece in pieces if piece]
    if not pieces:
        return [], False
    every = [word for piece in pieces for word in piece]
    breaks = list(pairwise(pieces))
    certain = any(_is_broken(a[-1], b[0], every) and not _both_known(a[-1], b[0]) for a, b in breaks)
    flags, was_broken = list(pieces[0]), False
    for _, piece in breaks:
        left, right = flags[-1], piece[0]
        doubtful = _both_known(left, right) and left + right in KNOWN_FLAGS
        twice = every.count(left) > 1 or every.count(right) > 1
        if _is_broken(left, right, every) and (not doubtful or certain or twice):
            flags[-1:] = [left + right]
            flags += piece[1:]
            was_broken = True
        else:
            flags += piece
    return flags, was_broken


def _both_known(left: str, right: str) -> bool:
    return left in KNOWN_FLAGS and right in KNOWN_FLAGS


def _is_broken(left: str, right: str, every: list[str]) -> bool:
    return left + right in KNOWN_FLAGS and left + right not in every
