"""Makes single kernels of torch in bf16, and puts many launches of one into a CUDA graph.

Inputs stay the same from launch to launch: where they fit in the second-level cache they are warm.
"""

from collections.abc import Callable
from typing import Any

from benchmarks.gpu_campaign.plan import KernelPoint

# A graph of about so long is one sample; longer kernels are launched one by one.
GRAPH_MS = 1.0
MOST_LAUNCHES = 200


def make(point: KernelPoint, *, device: str) -> Callable[[], Any]:
    """Return one launch of the kernel on fresh random inputs."""
    import torch

    generator = torch.Generator(device=device).manual_seed(0)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, dtype=torch.bfloat16, device=device, generator=generator)

    return _MAKERS[point.kind](point, normal)


def _gemm(point: KernelPoint, normal: Callable[..., Any]) -> Callable[[], Any]:
    import torch

    b, m, n, k = (point.sizes[key] for key in "bmnk")
    if point.op == "bmm":
        left, right = normal(b, m, k), normal(b, k, n)
        return lambda: torch.bmm(left, right)
    x, weight = normal(m, k), normal(n, k)
    return lambda: torch.nn.functional.linear(x, weight)


def _conv(point: KernelPoint, normal: Callable[..., Any]) -> Callable[[], Any]:
    import torch

    s = point.sizes
    x = normal(s["n"], s["c"], s["hw"], s["hw"])
    weight = normal(s["out"], s["c"] // s["groups"], s["kernel"], s["kernel"])
    return lambda: torch.nn.functional.conv2d(
        x, weight, stride=s["stride"], padding=s["kernel"] // 2, groups=s["groups"]
    )


def _attention(point: KernelPoint, normal: Callable[..., Any]) -> Callable[[], Any]:
    import torch

    s = point.sizes
    query = normal(s["b"], s["heads"], s["q"], s["d"])
    key, value = (normal(s["b"], s["heads"], s["kv"], s["d"]) for _ in range(2))
    is_causal = bool(s["causal"])
    return lambda: torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=is_causal
    )


def _elementwise(point: KernelPoint, normal: Callable[..., Any]) -> Callable[[], Any]:
    import torch

    rows, columns = point.sizes["rows"], point.sizes["columns"]
    x = normal(rows, columns)
    functional = torch.nn.functional
    if point.op in ("add", "mul"):
        y, operation = normal(rows, columns), getattr(torch, point.op)
        return lambda: operation(x, y)
    if point.op == "layer_norm":
        weight, bias = normal(columns), normal(columns)
        return lambda: functional.layer_norm(x, (columns,), weight, bias)
    if point.op == "softmax":
        return lambda: torch.softmax(x, -1)
    if point.op == "sum":
        return lambda: x.sum(-1)
    if point.op == "transpose":
        return lambda: x.t().contiguous()
    operation = getattr(functional, point.op)
    return lambda: operation(x)


_MAKERS = {"gemm": _gemm, "conv": _conv, "attention": _attention, "elementwise": _elementwise}


def in_graph(launch: Callable[[], Any], launches: int) -> Callable[[], Any]:
    """Return the replay of a CUDA graph of so many launches, one after the other."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # workspaces are made before the capture
        for _ in range(3):
            launch()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            launch()

    def replay() -> Any:
        graph.replay()

    return replay
