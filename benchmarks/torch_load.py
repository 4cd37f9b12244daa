"""What reading a PyTorch model costs: a decoder of 70 billion weights, and many small models.

    python -m benchmarks.torch_load [FOLDER]

The decoder is read in a process of its own, imports and all; the models of timm in one process
after the imports, which are shown apart. CPU seconds, since the machine is shared. FOLDER keeps
results of `benchmarks.zoo_coverage`, which loads the same models.
"""

import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.tables import markdown, write_result
from benchmarks.zoo_coverage import outcomes, timm_names
from slicewise.graph.frontends import zoo

# The sizes of Llama 3 70B (Grattafiori et al., arXiv 2407.21783, table 3).
LLAMA_70B = (
    "transformers:llama?num_hidden_layers=80&hidden_size=8192&intermediate_size=28672"
    "&num_attention_heads=64&num_key_value_heads=8&vocab_size=128256&seq=2048"
    "&max_position_embeddings=8192"
)
TIMM = 64

_IMPORTS = """
import resource, time
wall, cpu = time.perf_counter(), time.process_time()
import {modules}
print(time.perf_counter() - wall, time.process_time() - cpu)
"""
_DECODER = """
import json, logging, resource, sys, time
logging.disable(logging.WARNING)
import slicewise
from slicewise.graph.frontends import zoo
wall, cpu = time.perf_counter(), time.process_time()
import torch; zoo.import_torchvision(); import transformers
imported = time.process_time() - cpu
graph = slicewise.load(sys.argv[1])
first = time.process_time() - cpu
took = time.perf_counter() - wall
cpu = time.process_time()
graph.bind(batch_size=8)
print(json.dumps({
    "nodes": len(graph.nodes), "parameters": graph.parameters, "wall_s": took, "cpu_s": first,
    "import_s": imported, "rebind_s": time.process_time() - cpu,
    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}))
"""


def decoder() -> dict[str, float]:
    """Return what reading the decoder takes in a fresh process."""
    out = subprocess.check_output([sys.executable, "-c", _DECODER, LLAMA_70B], text=True)
    told: dict[str, float] = json.loads(out.splitlines()[-1])
    return told


def imports(modules: str) -> tuple[float, float]:
    """Return wall and CPU seconds of importing the modules in a fresh process."""
    code = _IMPORTS.format(modules=modules)
    wall, cpu = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    return float(wall), float(cpu)


def main() -> None:
    """Measure and write the table."""
    logging.disable(logging.WARNING)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    wall, cpu = imports("torch, torch.export")
    large = decoder()
    zoo.import_torchvision()
    import timm  # noqa: F401

    made = [each for each in outcomes(timm_names(TIMM), folder / "timm.jsonl") if not each.reason]
    seconds = sorted(each.cpu_s for each in made)
    rows = [
        ("import torch", f"{wall:.1f}", f"{cpu:.1f}", "", ""),
        (
            "decoder of the shape of Llama 70B, 2048 tokens: fresh process, imports included",
            f"{large['wall_s']:.1f}",
            f"{large['cpu_s']:.1f}",
            "wall < 60 s, peak < 1 GB",
            f"{large['parameters'] / 1e9:.2f} G parameters, {large['nodes']:.0f} nodes, peak"
            f" {large['peak_bytes'] / 1e6:.0f} MB, imports {large['import_s']:.1f} CPU s",
        ),
        ("the same at another batch", "", f"{large['rebind_s']:.1f}", "", "no new export"),
        (
            f"{len(made)} models of timm, each in a warm process",
            "",
            f"{seconds[len(seconds) // 2]:.2f}",
            "median < 5 CPU s",
            f"quartiles {seconds[len(seconds) // 4]:.2f} and {seconds[3 * len(seconds) // 4]:.2f},"
            f" greatest {seconds[-1]:.1f}",
        ),
    ]
    models = [
        (each.location.removeprefix("timm:"), f"{each.cpu_s:.2f}", str(each.nodes))
        for each in sorted(made, key=lambda each: each.cpu_s)
    ]
    write_result(
        "torch_load",
        title="What reading a PyTorch model costs",
        command="python -m benchmarks.torch_load",
        words="On two shared cores: wall times are upper bounds.",
        columns=("what", "wall s", "CPU s", "to reach", "figures"),
        rows=rows,
        more="\n".join(["## Models of timm", "", *markdown(("model", "CPU s", "nodes"), models)]),
    )


if __name__ == "__main__":
    main()
