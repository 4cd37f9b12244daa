"""The PyTorch door: bindings, sources, files, and what it says where it cannot."""

# mypy: allow-subclassing-any

import functools
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from slicewise.core.errors import ModelError, UsageError
from slicewise.core.graph import Binding, Graph
from slicewise.graph.frontends.torch import read_exported, read_module, read_program
from slicewise.graph.frontends.torch.export import Exported, export, quiet
from slicewise.graph.work import count_work


def read(module: Any, *args: Any, binding: Binding | None = None, **kwargs: Any) -> Graph:
    if isinstance(module, nn.Module):
        module.eval()
    return read_module(module, args, kwargs, binding or Binding(), name="net", location="net")


def convolution() -> Any:
    with torch.device("meta"):
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def image(*shape: int) -> Any:
    return torch.empty(*(shape or (1, 3, 8, 8)), device="meta")


def made() -> tuple[Any, tuple[Any, ...], Mapping[str, Any]]:
    return convolution(), (image(),), {}


# --- binding


def test_the_batch_is_that_of_the_examples_until_another_is_asked() -> None:
    graph = read(convolution(), image(2, 3, 8, 8))
    assert (graph.batch_size, graph.batch_axes) == (2, {"input": 0})
    assert graph.bind(batch_size=1).tensors["input"].shape == (1, 3, 8, 8)
    assert not graph.notes


def test_another_batch_costs_no_second_export(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = read(convolution(), image())

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("exported again")

    monkeypatch.setattr(torch.export, "export", fail)
    assert graph.bind(batch_size=32).tensors["input"].shape == (32, 3, 8, 8)


def test_whole_shapes_are_exported_anew() -> None:
    graph = read(convolution(), image())
    wide = graph.bind(inputs={"input": (1, 3, 16, 16)}, batch_size=4)
    assert wide.tensors["input"].shape == (4, 3, 16, 16)
    assert graph.bind(inputs={"": (2, 3, 9, 9)}).batch_size == 2


def test_a_module_that_fixes_its_batch_is_exported_for_each_one() -> None:
    class Fixed(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.cat([x[i] for i in range(x.shape[0])])

    graph = read(Fixed(), torch.zeros(2, 4))
    assert [len(graph.bind(batch_size=n).nodes) for n in (1, 3)] == [2, 4]


def test_batch_axes_are_the_users_word() -> None:
    graph = read(nn.Linear(4, 4), torch.zeros(6, 2, 4), binding=Binding(batch_axes={"input": 1}))
    assert (graph.batch_size, graph.batch_axes) == (2, {"input": 1})
    assert graph.bind(batch_size=5).tensors["input"].shape == (6, 5, 4)
    with pytest.raises(ModelError, match="no input of model 'net' has a batch axis"):
        read(nn.Linear(4, 4), torch.zeros(1, 4),
             binding=Binding(batch_axes={"input": None}, batch_size=2))  # fmt: skip


def test_keyword_and_nested_inputs_go_by_flattened_names() -> None:
    class Nested(nn.Module):
        def forward(self, x: Any, pair: Any, *, mask: Any = None, scale: float = 1.0) -> Any:
            return (x + pair["a"] + pair["b"][0]) * mask * scale

    x = torch.zeros(1, 4)
    graph = read(Nested(), x, mask=x, pair={"a": x, "b": [x]}, scale=2.0)
    assert graph.inputs == ("x", "pair_a", "pair_b_0", "mask")
    assert graph.bind(batch_size=3).tensors["pair_b_0"].shape == (3, 4)
    assert set(graph.batch_axes) == set(graph.inputs)


@pytest.mark.parametrize(
    ("binding", "text"),
    [
        (Binding(inputs={"inptu": (1, 3, 8, 8)}), "no input 'inptu'.*did you mean input"),
        (Binding(dims={"seq": 4}), "no free dimension 'seq'"),
        (Binding(inputs={"input": (3, 8, 8)}), "has 4 axes"),
        (Binding(batch_size=0), "batch 0"),
    ],
)
def test_what_the_module_does_not_have_is_a_usage_error(binding: Binding, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        read(convolution(), image(), binding=binding)


# --- the module stays as it was


def test_modes_come_back_and_leave_a_note() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    module[0].eval()
    graph = read_module(module, (torch.zeros(1, 4),), {}, Binding(), name="net", location="net")
    assert (module.training, module[0].training, module[1].training) == (True, False, True)
    assert [node.op_type for node in graph.nodes] == ["Gemm"]
    assert "training-mode" in {note.code for note in graph.notes}


def test_a_failed_export_leaves_the_module_alone() -> None:
    module = nn.Sequential(nn.Linear(4, 4)).train()
    weight = module[0].weight
    with pytest.raises(ModelError):
        read_module(module, (torch.zeros(1, 5),), {}, Binding(), name="net", location="net")
    assert module.training and module[0].weight is weight


def test_export_gives_the_program_and_its_batch_symbol() -> None:
    exported = export(convolution(), (image(),), {}, label="model 'net'")
    assert isinstance(exported, Exported)
    assert exported.batch_symbol is not None


# --- messages


class Decides(nn.Module):
    def forward(self, x: Any) -> Any:
        if x.sum() > 0:
            return x
        return -x


class Reads(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2 if x.max().item() > 1 else x


class Breaks(nn.Module):
    def forward(self, x: Any) -> Any:
        empty: dict[str, Any] = {}
        return empty["missing"]


@pytest.mark.parametrize(
    ("module", "args", "texts"),
    [
        (nn.Linear(5, 3), (torch.zeros(1, 4),),
         ("inputs (1x4 float32)", "forward(input)", "[5, 3]")),
        (nn.Linear(4, 3), (torch.zeros(1, 4),) * 2, ("too many positional", "forward(input)")),
        (Decides(), (torch.zeros(1, 4),), ("test_torch_door.py", "torch.cond", "strict=False")),
        (Reads(), (torch.zeros(2, 4),), ("test_torch_door.py", "torch.where", "dynamo=False")),
        (Breaks(), (torch.zeros(2, 4),), ("'missing'", "test_torch_door.py")),
    ],
)  # fmt: skip
def test_what_torch_refuses_is_one_line_that_names_the_place(
    module: Any, args: tuple[Any, ...], texts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelError) as caught:
        read(module, *args)
    message = str(caught.value)
    assert all(text in message for text in texts), message
    assert "\n" not in message and "Traceback" not in message
    assert caught.value.__cause__ is not None
    assert capsys.readouterr() == ("", "")


def test_data_dependence_is_told_on_the_meta_device_too() -> None:
    with pytest.raises(ModelError, match="decides by the values of a tensor"):
        read(Decides(), image(2, 4))


def test_a_custom_operator_without_shapes_is_named() -> None:
    @torch.library.custom_op("slicewise_tests::twist", mutates_args=())  # type: ignore[untyped-decorator]
    def twist(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    class Twists(nn.Module):
        def forward(self, x: Any) -> Any:
            return twist(x)

    with pytest.raises(ModelError, match=r"slicewise_tests::twist.*register_fake"):
        read(Twists(), torch.zeros(1, 4))
    twist.register_fake(torch.empty_like)
    graph = read(Twists(), torch.zeros(1, 4))
    assert [(n.domain, n.op_type) for n in graph.nodes] == [("torch.slicewise_tests", "twist")]


def test_an_operator_registered_for_one_device_is_named_too() -> None:
    library = torch.library.Library("slicewise_tests_cpu", "DEF")
    library.define("turn(Tensor x) -> Tensor")
    library.impl("turn", torch.clone, "CPU")

    class Turned(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = torch.ops.slicewise_tests_cpu.turn(x)
            return made

    with pytest.raises(ModelError, match=r"slicewise_tests_cpu::turn.*register_fake"):
        read(Turned(), torch.empty(2, 4))


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(ModelError, match=r"is a str; give a torch\.nn\.Module"):
        read("resnet50", image())


# --- sources


def test_a_graph_of_a_module_can_be_pickled_where_the_module_can_be_made_again() -> None:
    graph = read_module(
        *made(), Binding(), name="net", location="net", remake=functools.partial(made)
    )
    again: Graph = pickle.loads(pickle.dumps(graph))
    assert again == graph
    assert again.bind(batch_size=4).tensors["input"].shape == (4, 3, 8, 8)
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        pickle.dumps(read(convolution(), image()))


@pytest.fixture(name="free", scope="module")
def _free() -> Any:
    with torch.no_grad(), quiet():
        dims = {"input": {0: torch.export.Dim("n"), 2: torch.export.Dim("h", min=4, max=512)}}
        example = torch.zeros(2, 3, 8, 8)
        return torch.export.export(
            nn.Conv2d(3, 4, 3), (example,), dynamic_shapes=dims, strict=False
        )


def test_a_pt2_file_gives_the_graph_of_its_program(tmp_path: Path, free: Any) -> None:
    path = tmp_path / "net.pt2"
    with quiet():
        torch.export.save(free, path)
    symbols = [str(size) for size in _input_of(free).shape]
    graph = read_program(str(path), Binding(dims={symbols[2]: 10}))
    assert graph.tensors["input"].shape == (1, 3, 10, 8)
    assert graph.name == "net"
    eight: Graph = pickle.loads(pickle.dumps(graph)).bind(batch_size=8)
    assert count_work(eight).total.macs == 8 * count_work(graph).total.macs
    assert graph.source is not None and graph.source.runtime == "torch-eager"
    with pytest.raises(ModelError, match=rf"leaves 1 dimension free: '{symbols[2]}'"):
        read_program(str(path), Binding())
    with pytest.raises(UsageError, match=r"=3 is outside.*4 to 512"):
        read_program(str(path), Binding(dims={symbols[2]: 3}))


def test_the_bytes_of_weights_are_not_read(tmp_path: Path) -> None:
    from slicewise.graph.frontends.torch.file import load_program

    module, path = nn.Linear(3, 4), tmp_path / "net.pt2"
    module.weight.data.fill_(1.0)
    with quiet():
        torch.export.save(_exported(module, torch.zeros(1, 3)), path)
    assert not load_program(path).state_dict["weight"].any()
    assert read_program(str(path), Binding()).parameters == 3 * 4 + 4


def test_a_file_with_operators_that_are_not_there_says_so(tmp_path: Path) -> None:
    import zipfile

    whole, path = tmp_path / "whole.pt2", tmp_path / "net.pt2"
    with quiet():
        torch.export.save(_exported(nn.ReLU(), torch.zeros(1, 3)), whole)
    with zipfile.ZipFile(whole) as given, zipfile.ZipFile(path, "w") as copy:
        for member in given.infolist():
            data = given.read(member).replace(b"torch.ops.aten.relu", b"torch.ops.mylib.relu")
            copy.writestr(member.filename, data)
    with pytest.raises(ModelError, match="another version, or has operators of a package"):
        read_program(str(path), Binding())


def test_a_shape_that_a_program_refuses_is_told_in_one_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with quiet():
        program = _exported(nn.Linear(3, 4), torch.zeros(2, 3))
    with pytest.raises(ModelError, match="contradicts node 'linear'") as caught:
        read_exported(program, Binding(inputs={"": (2, 5)}), name="net", location="net")
    assert "\n" not in str(caught.value)
    assert ".;" not in str(caught.value)
    assert not capfd.readouterr().err


def test_a_program_with_vmap_in_it_counts_all_items() -> None:
    class PerItem(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, x: Any) -> Any:
            return torch.vmap(self.layer)(x)

    with quiet():
        program = _exported(PerItem(), torch.zeros(5, 3))
    graph = read_exported(program, Binding(), name="net", location="net")
    assert count_work(graph).total.macs == 5 * 3 * 4


def test_a_module_nested_too_deeply_for_python_says_so() -> None:
    class Nest(nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    module: Any = nn.Identity()
    for _ in range(600):
        module = Nest(module)
    with pytest.raises(ModelError, match=r"nests its modules deeper.*setrecursionlimit"):
        read(module, image())


def _input_of(program: Any) -> Any:
    return next(n for n in program.graph.nodes if n.name == "input").meta["val"]


def _save_weights(path: Path) -> None:
    torch.save({"weight": torch.zeros(2)}, path)


def _save_script(path: Path) -> None:
    with quiet():
        torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2)), str(path))


def _save_text(path: Path) -> None:
    path.write_text("no zip file")


@pytest.mark.parametrize(
    ("save", "text"),
    [
        (_save_weights, "weights or pickled objects"),
        (_save_script, "a TorchScript file"),
        (_save_text, "not a .pt2 file or is damaged"),
        (lambda path: None, "there is no model file"),
    ],
)
def test_other_files_are_told_apart(tmp_path: Path, save: Any, text: str) -> None:
    path = tmp_path / "other.pt2"
    save(path)
    with pytest.raises(ModelError, match=text):
        read_program(str(path), Binding())


# --- programs with a fixed batch


class Baked(nn.Module):
    """A class token, heads, and all sizes as numbers."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Any) -> Any:
        n = self.batch
        x = torch.cat([self.token.expand(n, -1, -1), x], dim=1)
        q, k, v = self.qkv(x).reshape(n, 5, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return mixed.transpose(1, 2).reshape(n, 5, 16) + torch.zeros(n, 1, 1)


def _exported(module: Any, *args: Any) -> Any:
    with torch.no_grad(), quiet():
        return torch.export.export(module.eval(), args, strict=False)


@pytest.mark.parametrize("old", [1, 2])
@pytest.mark.parametrize("new", [1, 8])
def test_a_batch_written_into_a_program_is_rewritten(old: int, new: int) -> None:
    program = _exported(Baked(old), torch.zeros(old, 4, 16))
    graph = read_exported(program, Binding(batch_size=new), name="net", location="net")
    wanted = read(Baked(new), torch.zeros(new, 4, 16))
    assert count_work(graph).total.macs == count_work(wanted).total.macs
    assert [graph.tensors[n].shape for n in graph.outputs] == [(new, 5, 16)]
    assert graph.digest == read_exported(program, Binding(), name="net", location="net").digest
    codes = {note.code for note in graph.notes}
    assert ("reshape-rewritten" in codes) == (old != new)


def test_initial_states_of_a_recurrence_take_the_new_batch() -> None:
    program = _exported(nn.LSTM(4, 6, batch_first=True), torch.zeros(1, 3, 4))
    one = read_exported(program, Binding(), name="net", location="net")
    four = one.bind(batch_size=4)
    assert count_work(four).total.macs == 4 * count_work(one).total.macs


def test_a_batch_that_cannot_be_replaced_names_the_node_and_the_line() -> None:
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.square = nn.Parameter(torch.ones(2, 2))

        def forward(self, x: Any) -> Any:
            return x @ self.square

    program = _exported(Stubborn(), torch.zeros(2, 2).t())
    with pytest.raises(ModelError, match=r"'matmul'.*test_torch_door.py:\d+"):
        read_exported(program, Binding(batch_size=3, batch_axes={"x": 1}), name="n", location="n")
