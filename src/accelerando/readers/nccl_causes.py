"""What lines of an NCCL or RCCL log mean: noise, causes, and consequences of causes elsewhere."""

# ruff: noqa: E501 - one pattern a line reads best

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Meaning:
    """A pattern in a line and the sentence it stands for; ``{name}`` is filled from the pattern's named groups."""

    pattern: re.Pattern[str]
    sentence: str

    def match(self, text: str) -> str | None:
        """Return the sentence if the text has the pattern."""
        found = self.pattern.search(text)
        if not found:
            return None
        said = {name: (value or "unknown").strip() for name, value in found.groupdict().items()}
        return re.sub(r" \((?:signal |completion with status )?unknown\)", "", self.sentence.format(**said))


def _meanings(*pairs: tuple[str, str]) -> tuple[Meaning, ...]:
    return tuple(Meaning(re.compile(pattern, re.I), sentence) for pattern, sentence in pairs)


# Looks alarming, and is part of every healthy log.
HARMLESS = _meanings(
    (
        r"NET/Plugin.*(?:no plugin found|could not find|failed to find|not found|Plugin load .*returned|using internal)"
        r"|NET/Plugin: Could not|Could not find: \S*libnccl-net",
        "NET/Plugin: no plugin found; NCCL uses its own network code",
    ),
    (r"(?:libnccl-)?tuner\S*.*(?:could not find|no such file|failed to find|not found)|TUNER/Plugin: (?:no|could not|failed|using internal)",
     "TUNER/Plugin: no tuner plugin; NCCL's own tuning is used"),
    (r"PROFILER/Plugin: (?:could not|no|failed)|libnccl-profiler\S* .*(?:no such file|could not|cannot open)",
     "PROFILER/Plugin: no profiler plugin; nothing is lost"),
    (r"ENV/Plugin: (?:could not|no|failed)|libnccl-(?:env|gin)\S* .*(?:no such file|could not|cannot open)",
     "optional plugin not found; nothing is lost"),
    (r"NCCL_\w+ set (?:by environment )?to|NCCL_DEBUG\b.*set", "NCCL_… set by environment: a setting, repeated"),
    (r"Failed to open libibverbs|NET/IB : No device found|No IB devices? found|NET/IB : No IB device",
     "NET/IB: no InfiniBand device; sockets are used"),
    (r"NVLS multicast support is not available|NVLS multicast support is disabled", "NVLS: this GPU or driver has no multicast"),
    (r"Could not (?:find|enable)\b.*(?:nv_peer_mem|GPUDirect|peermem)|GDRDMA not|GPU Direct RDMA Disabled",
     "GPUDirect RDMA is not used: slower between nodes, not wrong"),
    (r"Call to (?:connect|accept) returned Connection refused, retrying", "connection refused, retrying: another rank was not up yet"),
    (r"NUMA auto balancing enabled", "NUMA auto balancing is on: may cost speed, not wrong"),
    (r'Missing "?iommu=pt"?', 'iommu=pt is missing on the kernel command line: may hang or slow down some machines, usually works'),
    (r"Guessing (?:device ID|PCI bus)|using GPU \d+ (?:to perform barrier|as device used by this process)",
     "torch guesses which GPU a rank uses: pass device_id to init_process_group"),
    (r"destroy_process_group\(\) was not called", "the process group was not destroyed at the end"),
    (r"Setting affinity for GPU|Trees? \[|P2P Chunksize|threadThresholds|cudaDriverVersion|MNNVL 0", ""),
    (r"Kernel version .*(?:below|older)|dmabuf.*not (?:supported|available)|DMA-BUF is (?:not )?available", "DMA-BUF is not available: another way is taken"),
    (r"comm \S+ rank \d+.*(?:Abort|Destroy) COMPLETE|Abort COMPLETE|Destroy COMPLETE", ""),
    (r"NCCL_IB_HCA set to|OOB \S+", ""),
    (r"RAS failed to establish a client listening socket|ras/client_support\.cc.*bind failed", "RAS: its port is taken, so no client can ask this process; the training does not need it"),
    (r"falling back to simple order", "NCCL found no better pattern for its rings and takes the simple order: may cost speed, not wrong"),
    (r"Got (?:non-fatal )?async event ?: ?(?:GID table change|client re-?registration|(?:SM|LID|P_Key) change|port active)|Got non-fatal async event",
     "NET/IB: the network card reported a change that harms nothing"),
)  # fmt: skip

# Something that went wrong by itself.
CAUSES = _meanings(
    (r"Out of bounds values : [1-9]\d* FAILED", "the collectives gave wrong results (nccl-tests: out of bounds values)"),
    (r"Duplicate GPU detected ?: rank (?P<a>\d+) and rank (?P<b>\d+) both on (?:CUDA |HIP )?device (?P<device>\w+)",
     "Duplicate GPU detected: rank {a} and rank {b} use the same GPU (device {device}); give each rank its own"),
    (r"Duplicate GPU detected", "Duplicate GPU detected: two ranks use the same GPU; give each rank its own"),
    (r"no socket interface found|Bootstrap : no (?:socket )?interface|NCCL_SOCKET_IFNAME interface found|No interface found in the same subnet",
     "no socket interface found: NCCL_SOCKET_IFNAME names none that exists, or the machine has no network address"),
    (r"connecting to address\s+with family \d+ is neither", "no usable socket address: NCCL_SOCKET_IFNAME names no interface that exists"),
    (r"rank (?P<rank>\d+) of (?P<all>\d+) ranks has already checked in", "two processes both say that they are rank {rank} (of {all})"),
    (r"message truncated ?: recei(?:ved|ving) (?P<a>\d+) bytes instead of (?P<b>\d+)",
     "the ranks do not send what the others expect (message truncated, {a} bytes instead of {b}): another version of NCCL, other NCCL_ variables or another size on some rank (mismatch)"),
    (r"no algorithm/protocol available for function (?P<op>\w+)",
     "NCCL_ALGO and NCCL_PROTO leave no algorithm for {op}: unset them"),
    (r"P2P is disabled between (?:NVLINK )?connected GPUs (?P<a>\d+) and (?P<b>\d+)",
     "GPUs {a} and {b} are connected, but the driver does not let them reach each other (P2P is disabled); often broken hardware or virtualisation"),
    (r"mismatch in rank count from procs (?P<a>\d+) ?: ?(?P<b>\d+)", "the ranks were started with different world sizes ({a} and {b})"),
    (r"Mismatched (?:NCCL|RCCL|version)|(?<!library )version mismatch|different (?:NCCL|RCCL) versions",
     "the ranks run different versions of NCCL (version mismatch)"),
    (r"CUDA driver version is insufficient for CUDA runtime", "the GPU driver is older than this CUDA runtime needs"),
    (r"Cuda failure (?:\d+ )?'?out of memory|CUDA out of memory|HIP out of memory|hipErrorOutOfMemory", "a GPU ran out of memory"),
    (r"Cuda failure (?:\d+ )?'?peer access is not supported|peer access is not supported between these two devices",
     "these two GPUs cannot reach each other's memory (peer access not supported); try NCCL_P2P_DISABLE=1"),
    (r"illegal memory access", "a CUDA kernel accessed memory it may not (illegal memory access); often the program's, not NCCL's"),
    (r"uncorrectable ECC|Xid\b.*\b(?:48|63|64|74|79|94|95)\b|fell off the bus|uncorrectable NVLink error",
     "a GPU or its link failed in hardware"),
    (r"invalid device ordinal", "a rank asks for a GPU number that this machine does not have (invalid device ordinal)"),
    (r"no kernel image is available", "this build of NCCL has no code for this GPU (no kernel image)"),
    (r"Error while attaching to shared memory segment", "the shared memory of another rank on this host is not there: ranks in different containers, or that rank ended"),
    (r"No space left on device|posix_fallocate failed|Error while creating shared memory segment|failed to extend /dev/shm|shm_open\S* .*failed|Error: failed to extend",
     "/dev/shm is too small: give the container more (docker: --shm-size=1g)"),
    (r"Call to (?:ibv_reg_mr\w*|ibv_create_\w+) failed.*Cannot allocate memory|ibv_\w+ failed with error Cannot allocate memory|memlock|locked memory",
     "memory cannot be locked for InfiniBand: raise the locked-memory limit (ulimit -l unlimited)"),
    (r"Got completion (?:from peer \S+ )?with (?:error|status[= ])\s*(?P<code>\w+)",
     "NET/IB: a transfer failed on the InfiniBand network (completion with status {code}): cable, switch, GID or timeout setting"),
    (r"Got async event ?: ?(?P<event>[\w ]+)", "NET/IB: the network card reported {event}"),
    (r"Call to ibv_modify_qp failed(?: with (?:error )?(?P<why>[\w ]+))?|ibv_modify_qp failed",
     "NET/IB: a queue pair could not be connected ({why}): check NCCL_IB_GID_INDEX and that all nodes are on one fabric"
     ),
    (r"Call to (?P<call>ibv_\w+) failed(?: with (?:error )?(?P<why>[\w ]+))?", "NET/IB: {call} failed ({why})"),
    (r"(?:Call to connect returned|Connect to \S+ failed|connect\S* to \S+ failed)[^,]*(?:No route to host)|No route to host",
     "no route to another rank's address: firewall, or NCCL_SOCKET_IFNAME picks the wrong interface"),
    (r"Connect to (?P<peer>\S+) failed ?: ?(?P<why>[\w ]+)", "connecting to {peer} failed ({why}): firewall, or NCCL_SOCKET_IFNAME picks the wrong interface"),
    (r"Call to connect (?:to \S+ )?(?:returned|failed) ?:? ?(?P<why>Connection timed out|Connection refused)(?!, retrying)",
     "connecting to another rank failed ({why}): firewall, or NCCL_SOCKET_IFNAME picks the wrong interface"),
    (r"connect(?: to (?P<peer>\S+))? returned (?:\d+ ?)?\(?(?P<why>Connection (?:refused|timed out))\)?(?!, retrying)(?! ?\(?\d*\)?,? retrying)",
     "connecting to {peer} failed ({why}): firewall, or NCCL_SOCKET_IFNAME picks the wrong interface"),
    (r"socketStartConnect: exceeded retries", "connecting to another rank failed after all retries: firewall, or NCCL_SOCKET_IFNAME picks the wrong interface"),
    (r"Socket creation failed ?: ?(?P<why>[\w ]+)|Call to socket failed ?: ?(?P<what>[\w ]+)", "a socket could not be made ({why})"),
    (r"Call to bind failed ?: ?(?P<why>[\w ]+)|bind .*Address already in use", "an address could not be bound ({why})"),
    (r"Too many open files|socket\w*: get errno 24\b|unable to open file.*Too many", "too many open files: raise the limit (ulimit -n)"),
    (r"collective mismatch|mismatched collective|Detected mismatch between collectives",
     "the ranks call different collectives (mismatch), so they wait for each other"),
    (r"Could not (?:find|load|open).*libcuda|failed to (?:open|load) libcuda", "the GPU driver's library was not found (libcuda)"),
    (r"NVML.*(?:Driver/library version mismatch)|Driver/library version mismatch", "the GPU driver was updated without a reboot (driver/library version mismatch)"),
    (r"fabric(?:manager| state).*(?:not|fail)|system not yet initialized|Fabric Manager", "the NVSwitch fabric manager is not running"),
    (r"Failed to (?:CUDA|hip) host register|cudaHostRegister.*failed", "host memory could not be registered with the GPU"),
    (r"could not read node's topology|Could not find (?:a path|real path)|topo(?:logy)? file .*(?:not|invalid)|XML parse error|No NVML device", "NCCL could not read the topology of this machine"),
    (r"Cuda failure (?:\d+ )?'?(?P<why>[\w /()-]+)", "a CUDA call failed: {why}"),
    (r"HIP failure (?:\d+ )?'?(?P<why>[\w /()-]+)", "a HIP call failed: {why}"),
    (r"(?P<call>\w+) : invalid (?P<what>\w+) ?(?P<given>-?\d+)?", "{call} was called with an invalid {what}"),
    (r"Invalid (?:config|rank|root|device)\b", "NCCL was called with an invalid argument"),
    (r"CUDA error: (?P<why>[\w /()-]+)", "a CUDA call of the program failed: {why}"),
    (r"Segmentation fault", "a rank crashed (segmentation fault)"),
    (r"Signals?\.SIG(?P<signal>KILL|SEGV|BUS|ABRT)|exitcode\s*:\s*-(?P<code>9|11|7|6)\b|Bus error|oom-kill|Out of memory: Killed",
     "a rank was killed (signal {signal}); -9 is mostly the machine's memory, a bus error a full /dev/shm"),
)  # fmt: skip

ANOTHER_TIMED_OUT = "a collective timed out in another rank: look for its log"

# A rank that stood and waited: the cause is with another one.
HANGS = _meanings(
    (r"Your program may be hanging", "NCCL itself says that the program may hang: the ranks call different collectives, or one never calls"),
    (
        r"Watchdog caught collective operation timeout.*?SeqNum=(?P<seq>\d+),\s*OpType=(?P<op>\w+)",
        "a collective timed out ({op}, number {seq}): not all ranks arrived at it, or the network between them stood still",
    ),
    (
        r"Watchdog caught collective operation timeout|ran for \d+ milliseconds before timing out",
        "a collective timed out: not all ranks arrived at it, or the network between them stood still",
    ),
    (r"watchdog got stuck for \d+ seconds|heartbeat monitor timed out|monitoring thread detects no heartbeat", "the watchdog of torch got no sign of life from a rank"),
    (r"Call to connect (?:to \S+ )?returned Connection timed out, retrying", "connecting to another rank times out again and again"),
    (r"DUE TO TIME LIMIT|CANCELLED AT .* TIME", "the job ran into its time limit"),
    (r"detected a collective timeout from another rank|Received a (?:global )?(?:dump|timeout) signal due to a collective timeout", ANOTHER_TIMED_OUT),
    (r"store->get\([^)]{0,80}\) got error: (?:Socket Timeout|wait timeout)|wait(?:ing)? timeout after \d+\s?ms|Timed out after \d+ seconds? waiting for clients", "the ranks did not all meet in time"),
)  # fmt: skip

# Follows from something else: blamed only when nothing better is found.
CONSEQUENCES = _meanings(
    (
        r"Connection closed by remote peer|socketProgress.*closed|remote process exited|ncclRemoteError",
        "another rank ended first (connection closed by remote peer): look for the first error in its log",
    ),
    (r"Connection reset by peer|Broken pipe", "another rank ended first (connection reset): look for the first error in its log"),
    (r"Failed to execute operation|Socket (?:recv|send) failed|Call to (?:recv|send|read|write)\S* .*failed|Proxy Call to rank", "the connection to another rank broke: look for the first error in its log"),
    (r"unhandled system error|ncclSystemError", "a system call failed (unhandled system error); the NCCL WARN line says which, run with NCCL_DEBUG=WARN"),
    (r"unhandled cuda error|ncclUnhandledCudaError", "a CUDA call failed (unhandled cuda error); the NCCL WARN line says which, run with NCCL_DEBUG=WARN"),
    (r"invalid usage|ncclInvalidUsage", "NCCL was used wrongly (invalid usage); the NCCL WARN line says how, run with NCCL_DEBUG=WARN"),
    (r"invalid argument|ncclInvalidArgument", "NCCL got an invalid argument; the NCCL WARN line says which, run with NCCL_DEBUG=WARN"),
    (r"internal error|ncclInternalError", "NCCL failed inside (internal error); the NCCL WARN line says where, run with NCCL_DEBUG=WARN"),
    (r"NCCL failure|NCCL error|Test failure", "an NCCL call failed; run with NCCL_DEBUG=WARN to see why"),
    (r"DistBackendError|ncclCommAbort|communicator was aborted", "NCCL was aborted; the cause stands in another rank's log"),
)  # fmt: skip
