"""The small model of the runtimes' suite as a torch module, where a child can import it."""

from pathlib import Path
from typing import Any

from slicewise.core.measurement import Subject
from slicewise.testing.runtimes import small_subject, weights


def small_torch(_folder: Path, batch: int = 2) -> Subject:
    """Return the small model in the form 'torch'."""
    return small_subject("small", batch, "torch", torch_module)


def torch_module() -> Any:
    """Return the small model in evaluation mode, with the weights of the suite."""
    import torch

    made = {name: torch.from_numpy(value) for name, value in weights().items()}
    layers = torch.nn.Conv2d(3, 4, 1), torch.nn.Linear(4 * 8 * 8, 5)
    for layer, name in zip(layers, ("conv", "fc"), strict=True):
        layer.load_state_dict({"weight": made[f"{name}.w"], "bias": made[f"{name}.b"]})
    conv, linear = layers
    return torch.nn.Sequential(conv, torch.nn.ReLU(), torch.nn.Flatten(), linear).eval()
