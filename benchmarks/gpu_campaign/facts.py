"""What the machine is and what it can do at best: versions, clocks, launch times, bandwidths.

Names of the host, serial numbers and UUIDs are left out.
"""

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from statistics import median
from typing import Any

_PACKAGES = ("torch", "triton", "timm", "transformers", "torchvision", "onnx", "numpy",
             "nvidia-ml-py", "nvidia-cudnn-cu13", "nvidia-cublas")  # fmt: skip
# Lines of `nvidia-smi -q` that are kept, by what stands before the colon.
_KEPT = re.compile(
    r"^\s*(Driver Version|CUDA Version|Product Name|Product Architecture|Persistence Mode|"
    r"Compute Mode|Current|Pending|VBIOS Version|Performance State|Graphics|SM|Memory|Video|"
    r"Total|Used|Free|Current Power Limit|Default Power Limit|Max Power Limit|Min Power Limit|"
    r"Average Power Draw|Instantaneous Power Draw|Power Draw|GPU Current Temp|Memory Current Temp|"
    r"GPU Link Info|Device Current|Max|Link Width|PCIe Generation|Virtualization Mode|.*Slowdown|"
    r"SW Power Cap|Idle|Applications Clocks Setting)\s*:|^\s*[A-Z][A-Za-z .]+$"
)


def software() -> dict[str, Any]:
    """Return versions, processor and operating system."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "packages": versions,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            found = re.search(r"^model name\s*:\s*(.+)$", file.read(), re.MULTILINE)
    except OSError:
        return platform.machine()
    return found[1].strip() if found else platform.machine()


def smi() -> dict[str, Any]:
    """Return what nvidia-smi says of the card: chosen lines of -q, the supported top clocks."""
    told = _output(["nvidia-smi", "-q", "-i", "0"])
    essentials = [line.rstrip() for line in told.splitlines() if _KEPT.match(line)]
    query = (
        "name,driver_version,power.limit,clocks.max.sm,clocks.max.mem,memory.total,"
        "mig.mode.current"
    )
    return {
        "query": _output(["nvidia-smi", f"--query-gpu={query}", "--format=csv", "-i", "0"]),
        "details": essentials[:200],
        "topology": _output(["nvidia-smi", "topo", "-m"])[:3000],
    }


def _output(command: list[str]) -> str:
    try:
        made = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as err:
        return f"{command[0]}: {type(err).__name__}"
    return made.stdout.strip() or made.stderr.strip()[:200]


def cuda() -> dict[str, Any]:
    """Return what torch says of the device, and the figures that are measured on it."""
    import torch

    card = torch.cuda.get_device_properties(0)
    version: Any = torch.version
    facts: dict[str, Any] = {
        "name": card.name,
        "sms": card.multi_processor_count,
        "capability": f"{card.major}.{card.minor}",
        "memory_bytes": card.total_memory,
        "l2_bytes": getattr(card, "L2_cache_size", None),
        "cuda": version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "interpreter": sys.implementation.name,
    }
    for name, measure in _FIGURES.items():
        try:
            facts.update(measure())
        except Exception as err:  # one figure less
            facts[f"{name}_error"] = f"{type(err).__name__}: {err}"[:200]
    return facts


def _launches() -> Mapping[str, float]:
    """Return us of a launch on the host, of one with its sync, and of a kernel in a graph."""
    import torch

    x = torch.zeros(1, device="cuda")
    x.add_(1)
    torch.cuda.synchronize()

    def batch(count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            x.add_(1)
        host = time.perf_counter() - begin
        torch.cuda.synchronize()
        return host / count * 1e6

    def waited() -> float:
        begin = time.perf_counter()
        x.add_(1)
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e6

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(1000):
            x.add_(1)

    def replayed() -> float:
        begin = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e3  # us for each of 1000

    single = torch.cuda.CUDAGraph()
    with torch.cuda.graph(single):
        x.add_(1)

    def replayed_single() -> float:
        begin = time.perf_counter()
        single.replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e6

    return {
        "launch_host_us": median(batch(500) for _ in range(10)),
        "launch_and_sync_us": median(waited() for _ in range(200)),
        "graph_kernel_us": median(replayed() for _ in range(10)),
        "graph_of_one_and_sync_us": median(replayed_single() for _ in range(200)),
    }


def _copies() -> Mapping[str, float]:
    """Return bandwidths of copies of 256 MiB in GB/s; device to device counts reads and writes."""
    import torch

    size = 1 << 28
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    pageable = torch.zeros(size, dtype=torch.uint8)
    here, there = (torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    big, copy = (torch.zeros(1 << 30, dtype=torch.float32, device="cuda") for _ in range(2))
    return {
        "host_to_device_pinned_gb_per_s": size / _seconds(lambda: here.copy_(pinned)) / 1e9,
        "host_to_device_pageable_gb_per_s": size / _seconds(lambda: here.copy_(pageable)) / 1e9,
        "device_to_host_pinned_gb_per_s": size / _seconds(lambda: pinned.copy_(here)) / 1e9,
        "device_to_device_gb_per_s": 2 * size / _seconds(lambda: there.copy_(here)) / 1e9,
        "device_copy_4gib_gb_per_s": 2 * (4 << 30) / _seconds(lambda: copy.copy_(big)) / 1e9,
    }


def _products() -> Mapping[str, float]:
    """Return the rate of an 8192 cubed matrix product of random data by type, in TFLOP/s."""
    import torch

    rates = {}
    for name, dtype, is_tf32 in (
        ("bf16", torch.bfloat16, False), ("fp16", torch.float16, False),
        ("tf32", torch.float32, True), ("fp32", torch.float32, False),
    ):  # fmt: skip
        torch.backends.cuda.matmul.allow_tf32 = is_tf32
        left, right = (torch.randn(8192, 8192, device="cuda").to(dtype) for _ in range(2))
        seconds = _seconds(lambda a=left, b=right: a @ b)  # type: ignore[misc]
        rates[f"gemm_8192_{name}_tflop_per_s"] = 2 * 8192**3 / seconds / 1e12
    torch.backends.cuda.matmul.allow_tf32 = False
    return rates


def _seconds(run: Callable[[], Any]) -> float:
    """Return the median time of a run between events, 2 to warm up and 7 to time."""
    import torch

    times = []
    for _ in range(9):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        run()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last) * 1e-3)
    return float(median(times[2:]))


_FIGURES: Mapping[str, Callable[[], Mapping[str, float]]] = {
    "launches": _launches,
    "copies": _copies,
    "products": _products,
}
