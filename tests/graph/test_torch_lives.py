"""How long a PyTorch program refers to its tensors, as a dry run sees it."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from slicewise.core.graph import Binding, Graph  # noqa: E402
from slicewise.graph.frontends.torch import read_exported, read_module  # noqa: E402
from slicewise.graph.frontends.torch.lives import align  # noqa: E402

WIDTH = 8


class Kept(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Holds one result in a variable, one in a list, and lets one go."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.rest = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)))

    def forward(self, x: Any) -> Any:
        kept = [self.first(x)]
        named = kept[0] + 1.0
        y = named * 2.0
        y = torch.relu(y)
        y = self.rest(y)
        del kept
        return torch.tanh(y)


def _read(module: Any) -> Graph:
    x = torch.zeros(2, WIDTH)
    return read_module(module, (x,), {}, Binding(), name="m", location="m")


def _held(graph: Graph) -> dict[str, str]:
    """Return the operators whose results are held, with the node that they are held to."""
    maker = {name: node.op_type for node in graph.nodes for name in node.outputs}
    return {maker[name]: node for name, node in graph.held_to.items() if name in maker}


def test_a_variable_and_a_list_hold_their_tensors_and_a_rebound_name_does_not() -> None:
    graph = _read(Kept())
    names = [node.name for node in graph.nodes]
    held = _held(graph)
    # the list goes with `del`, in front of tanh; the variable with the frame
    assert held["Gemm"] == names[-2] == "rest.2"
    assert held["Add"] == names[-1]
    assert "Mul" not in held
    # an argument: the caller's `y` lives until `rest` returns
    assert held["Relu"] == names[-2]


def test_the_dry_run_leaves_the_module_as_it_was() -> None:
    class Remembers(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(WIDTH, WIDTH)
            self.calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return torch.relu(self.layer(x))

    module = Remembers()
    weight = module.layer.weight
    before = dict(vars(module.layer))
    _read(module)
    assert module.layer.weight is weight
    assert vars(module.layer) == before
    assert module(torch.zeros(1, WIDTH)).shape == (1, WIDTH)


def test_a_program_without_its_module_leaves_a_note_and_knows_arguments_only() -> None:
    program = torch.export.export(Kept().eval(), (torch.zeros(2, WIDTH),), strict=False)
    graph = read_exported(program, Binding(), name="m", location="m")
    assert "lifetimes-by-module" in {note.code for note in graph.notes}
    assert set(_held(graph)) == {"Relu"}
    assert "lifetimes-by-module" not in {note.code for note in _read(Kept()).notes}


def test_what_is_held_does_not_depend_on_the_batch() -> None:
    graph = _read(Kept())
    assert graph.bind(batch_size=5).held_to == graph.held_to


@pytest.mark.parametrize(
    ("wanted", "seen", "places"),
    [
        ("abc", "abc", [0, 1, 2]),
        ("abxc", "abc", [0, 1, None, 2]),
        ("abc", "axbxc", [0, 2, 4]),
        ("", "ab", []),
        ("ab", "", [None, None]),
        ("aab", "ab", [0, None, 1]),
    ],
)
def test_operators_are_aligned_in_order(wanted: str, seen: str, places: list[int | None]) -> None:
    assert align(list(wanted), list(seen)) == places
