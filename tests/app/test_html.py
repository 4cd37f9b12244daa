"""Pages that people open: whole, harmless, readable, the same every time."""

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise._version import __version__
from slicewise.app.cli import run
from slicewise.app.html.blocks import Column, Section, page, table
from slicewise.app.html.charts import Point, Range, intervals, scatter
from slicewise.app.html.markup import Html, element, text
from slicewise.app.html.predict import breakdown, kinds
from slicewise.app.html.predict.memory import memory_over_time
from slicewise.app.html.predict.page import MOST_DETAILS, PageInput, predict_page
from slicewise.app.html.predict.sweep import BATCHES, Sweep, sweep_models
from slicewise.app.html.scale import Axis, binary_axis, linear_axis, log_axis, power_axis
from slicewise.app.kernels import alike_kernels, launched_kernels
from slicewise.core.cost import Estimate, Kind, MemoryEstimate, NodeEstimate, Prediction
from slicewise.core.document import ModelInfo, PredictionSet
from slicewise.core.notes import Note
from slicewise.core.precision import DType
from slicewise.flows.predict import PredictOptions, predict_many
from slicewise.testing.predictors import tiny_gpu

Golden = Callable[[str, str], None]
Light = Callable[[str], Path]
CARD = "a100-sxm4-80gb"
EVIL = "<script>alert('x')</script>\"&\x1b"

MODEL = ModelInfo("resnet", "models/resnet.onnx", "ab" * 32, 25_557_032, 53_120)
NODES = (
    NodeEstimate("conv1", "Conv", Kind.CONV, 1.25, 1.0, 0.25, "compute", 236_027_904, 3_800_000,
                 kernel=0, alive_bytes=149_000_000),
    NodeEstimate("relu1", "Relu", Kind.ELEMENTWISE, 0.25, 0.01, 0.2, "memory", 802_816, 6_400_000,
                 kernel=0, alive_bytes=149_000_000),
    NodeEstimate("flat", "Flatten", Kind.VIEW, 0.0, 0.0, 0.0, "none", 0, 0,
                 alive_bytes=9_000_000),
    NodeEstimate("gather", "Gather", Kind.MOVEMENT, 0.25, 0.0, 0.2, "memory", 0, 6_400_000,
                 kernel=1, alive_bytes=80_000_000),
    NodeEstimate("add", "Add", Kind.ELEMENTWISE, 0.0625, 0.0, 0.001, "launch", 1000, 12_000,
                 kernel=2, alive_bytes=9_000_000),
)  # fmt: skip
MADE = Prediction(
    model="resnet", device="tiny-gpu", slice=None, batch=8, precision="fp16",
    runtime="onnxruntime", macs=32_712_704_000, flops=65_800_000_000,
    latency_ms=Estimate(1.875, 1.5, 2.5, "roofline"), throughput_per_s=4266.6666,
    energy_j=Estimate(0.42, 0.25, 0.75, "idle and dynamic power"),
    memory_bytes=MemoryEstimate(700_000_000, 600_000_000, 900_000_000, 51_000_000, 149_000_000,
                                500_000_000, "tensor lifetimes"),
    compute_utilisation=0.1125, saturation=0.625, source="roofline", host_ms=0.0625, nodes=NODES,
    notes=(Note("reshape-rewritten", "the target [1,2048] is [8,2048] at batch 8", "flat"),
           Note("op-unknown", "com.acme.Frobnicate is in no table: bytes only")),
)  # fmt: skip
ON_SLICE = replace(MADE, slice="1g.10gb", latency_ms=Estimate(9.5, 6.0, 15.0, "slice rule"),
                   throughput_per_s=842.1)  # fmt: skip


def _given(*predictions: Prediction, models: tuple[ModelInfo, ...] = (MODEL,)) -> PageInput:
    card = tiny_gpu()
    devices = tuple(card if p.slice is None else card.slice("1g.10gb") for p in predictions)
    more = [
        replace(p, batch=batch, nodes=(), latency_ms=Estimate(batch / 4, batch / 5, batch / 3))
        for p in predictions
        for batch in (1, 2, 4)
    ]
    sweep = Sweep(predictions[0].model, (*predictions, *more), ((64, "the batch is baked in"),))
    arguments = ("predict", "models/resnet.onnx", "--device", "tiny-gpu", "--batch", "8")
    return PageInput(PredictionSet(models, predictions), devices, (sweep,), arguments)


class _Page(HTMLParser):
    """What a page is made of; fails where an end tag does not close the last open one."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(markup)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in ("meta", "input", "br", "hr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> does not close the last open element"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.words.append(data)

    def ids(self) -> list[str]:
        return [attrs["id"] for _, attrs in self.tags if "id" in attrs]

    def count(self, tag: str) -> int:
        return sum(found == tag for found, _ in self.tags)


def test_the_page_of_a_fixed_prediction_is_as_agreed(golden: Golden) -> None:
    made = predict_page(_given(MADE))
    made = re.sub(r"<(style|script)>.*?</\1>", r"<\1></\1>", made, flags=re.DOTALL)
    made = re.sub(r"sha256-[\w+/=]*", "sha256-", made).replace(__version__, "VERSION")
    golden("predict.html", made.replace("><", ">\n<"))


def test_every_section_of_a_single_prediction_is_there_in_order() -> None:
    found = _Page(predict_page(_given(MADE)))
    sections = [attrs["id"] for tag, attrs in found.tags if tag == "section"]
    assert sections == ["breakdown", "batch-1", "notes", "nodes", "reproduce"]
    assert "1.88 ms" in found.words
    headings = [tag for tag, _ in found.tags if tag in ("h1", "h2", "h3")]
    assert headings.count("h1") == 1
    words = " ".join(found.words)
    for told in ("Memory:", "Roofline:", "Activations peak", "Throughput", "Notes", "ab" * 32):
        assert told in words


def test_several_predictions_are_compared_first_and_folded_but_the_first() -> None:
    found = _Page(predict_page(_given(MADE, ON_SLICE)))
    sections = [attrs["id"] for tag, attrs in found.tags if tag == "section"]
    assert sections == ["comparison", "predictions", "batch-1", "notes", "reproduce"]
    folded = [a for tag, a in found.tags if tag == "details" and a.get("class") == "prediction"]
    assert ["open" in attrs for attrs in folded] == [True, False]
    assert "tiny-gpu/1g.10gb" in found.words


def test_what_may_not_fit_into_memory_is_not_recommended() -> None:
    small = replace(
        ON_SLICE, latency_ms=Estimate(0.5, 0.4, 0.6), throughput_per_s=16000.0,
        notes=(Note("memory-exceeded", "needs 12.0 GiB, has 10.0 GiB; it does not fit"),),
    )  # fmt: skip
    slow = replace(MADE, latency_ms=Estimate(3.0, 2.9, 3.1))
    one = "".join(_Page(str(predict_page(_given(small, MADE)))).words)
    assert "1.88 ms" in one.split("left out here")[0]
    assert "1 of 2 may not fit into memory and are left out here." in one
    assert "The only one sure to fit into memory: tiny-gpu" in one
    two = "".join(_Page(str(predict_page(_given(small, MADE, slow)))).words)
    assert "Quickest of those that fit: tiny-gpu, 1.60 times as fast" in two


def test_of_many_predictions_some_are_shown_in_full_and_the_page_says_so() -> None:
    found = _Page(predict_page(_given(*[replace(MADE, batch=i + 1) for i in range(30)])))
    folded = [a for tag, a in found.tags if tag == "details" and a.get("class") == "prediction"]
    assert len(folded) == MOST_DETAILS
    assert f"The first {MOST_DETAILS} of 30 predictions" in " ".join(found.words)


@pytest.mark.parametrize("predictions", [(MADE,), (MADE, ON_SLICE)], ids=["one", "several"])
def test_a_page_loads_nothing_and_its_ids_are_unique(predictions: tuple[Prediction, ...]) -> None:
    made = predict_page(_given(*predictions))
    found = _Page(made)
    ids = found.ids()
    assert len(ids) == len(set(ids))
    assert not re.search(r"https?:|//[a-z]|url\(|@import|\ssrc=|\shref=", made)
    assert found.count("link") == found.count("img") == found.count("iframe") == 0
    policy = next(a["content"] for _, a in found.tags if "http-equiv" in a)
    assert "default-src 'none'" in policy


def test_without_the_script_everything_is_visible() -> None:
    found = _Page(predict_page(_given(MADE, ON_SLICE)))
    hidden = {(tag, attrs.get("class")) for tag, attrs in found.tags if "hidden" in attrs}
    assert hidden == {("button", "quiet"), ("p", "filter")}
    assert all(name[:2] != "on" for _, attrs in found.tags for name in attrs)


def test_charts_and_tables_can_be_read_out() -> None:
    found = _Page(predict_page(_given(MADE, ON_SLICE)))
    for _, attrs in found.tags:
        if attrs.get("role") == "img":
            assert attrs["aria-label"]
    assert found.count("table") == found.count("caption") > 0
    assert ("html", {"lang": "en"}) in found.tags


def test_names_from_outside_are_text_everywhere() -> None:
    nodes = tuple(replace(n, name=f"{EVIL}{i}", op_type=EVIL) for i, n in enumerate(NODES))
    notes = (Note("op-unknown", EVIL, EVIL), Note("batch-assumed", f"{EVIL}2", EVIL))
    evil = replace(MADE, model=EVIL, nodes=nodes, notes=notes)
    info = replace(MODEL, name=EVIL, source=EVIL)
    for predictions in ((evil,), (evil, replace(evil, batch=2))):
        arguments = ("predict", EVIL, "--dim", f"{EVIL}=1")
        asked = replace(_given(*predictions, models=(info,)), arguments=arguments)
        made = predict_page(asked)
        found = _Page(made)
        assert found.count("script") == 1
        assert "<script>alert" not in made
        assert "\x1b" not in made
        assert any("<script>alert('x')</script>\"&?" in words for words in found.words)
    for card in (evil._repr_html_(), PredictionSet((info,), (evil,))._repr_html_()):
        assert _Page(card).count("script") == 0


@given(st.text())
def test_any_text_survives_as_itself_but_for_control_characters(words: str) -> None:
    shown = "".join(char if char.isprintable() else "?" for char in words)
    assert "".join(_Page(element("p", words, title=words)).words) == shown


def test_markup_is_not_escaped_twice() -> None:
    assert element("p", Html("<b>x</b>"), "<") == "<p><b>x</b>&lt;</p>"
    assert text(element("p", None)) == "<p></p>"


def _many_nodes(count: int) -> Prediction:
    each = 2.0**-10
    nodes = tuple(
        NodeEstimate(f"layers.{i}.attention.project", "MatMul", Kind.MATMUL, each, each, each,
                     "compute", 10**9 + i, 10**6, kernel=i, alive_bytes=10**7 + i)
        for i in range(count)
    )  # fmt: skip
    total_ms = each * count
    return replace(MADE, host_ms=0.0, nodes=nodes, latency_ms=Estimate(total_ms, 1.0, 9.0))


def test_a_page_of_five_thousand_unlike_nodes_stays_small() -> None:
    made = predict_page(_given(_many_nodes(5000)))
    found = _Page(made)
    assert len(made.encode()) < 5_000_000
    marks = sum(attrs.get("class", "").startswith("mark") for _, attrs in found.tags)
    assert marks < breakdown.DRAWN_POINTS + 100
    assert f"The {breakdown.DRAWN_POINTS} heaviest are drawn" in " ".join(found.words)
    assert found.count("tr") > 5000


def test_rows_of_nodes_are_bounded_over_several_predictions() -> None:
    many = _many_nodes(5000)
    made = predict_page(_given(many, replace(many, batch=2), replace(many, batch=4)))
    assert len(made.encode()) < 5_000_000
    assert "4,900 lighter nodes are left out" in made


def test_memory_over_time_is_left_out_with_a_sentence_where_it_is_not_known() -> None:
    bare = replace(MADE, nodes=tuple(replace(node, alive_bytes=0) for node in NODES))
    made = memory_over_time(bare, launched_kernels(bare), tiny_gpu())
    assert "does not tell which activations are alive" in made
    assert "<svg" not in made


def test_where_nothing_is_launched_no_empty_chart_or_table_stands() -> None:
    bare = replace(MADE, nodes=(replace(NODES[0], kernel=-1, latency_ms=0.0, alive_bytes=0),))
    made = predict_page(_given(bare))
    assert "1 node, 0 kernels" in made
    for words in ("0 sorts of kernel", "does not tell which activations", "All 1 nodes"):
        assert words not in made


def test_a_long_name_leaves_room_for_what_is_said_about_it() -> None:
    name = "model/" + "layer/" * 60 + "conv1"
    long = replace(MADE, nodes=tuple(replace(node, name=name) for node in NODES))
    told = "".join(re.findall(r"<h3>.*?</h3>|<small>.*?</small>", predict_page(_given(long))))
    assert "conv1" in told and "model/" not in told


def test_a_model_in_a_type_that_cannot_be_asked_for_has_a_page() -> None:
    gpu = tiny_gpu()
    able = replace(gpu, peak_flop_per_s={**gpu.peak_flop_per_s, DType.FP64: 1e12})
    given = replace(_given(replace(MADE, precision="fp64")), devices=(able,))
    assert "fp64 1 Tflop/s" in predict_page(given)


def test_the_bytes_of_a_fused_kernel_need_no_apology() -> None:
    made = predict_page(_given(MADE))
    assert launched_kernels(MADE)[0].title == "Conv + Relu"
    assert "too far left" not in made and "upper bound" not in made


def test_nodes_launched_together_are_one_kernel_and_nothing_is_lost() -> None:
    kernels = launched_kernels(MADE)
    assert [kernel.title for kernel in kernels] == ["Conv + Relu", "Gather", "Add"]
    assert sum(k.latency_ms for k in kernels) + MADE.host_ms == MADE.latency_ms.value
    assert kernels[0].main.name == "conv1"


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.25, 0.5])), max_size=30))
def test_grouping_alike_kernels_keeps_all_time_and_ranks_by_it(
    drawn: list[tuple[int, float]],
) -> None:
    nodes = tuple(replace(NODES[0], kernel=i, flops=f, latency_ms=ms) for i, (f, ms)
                  in enumerate(drawn))  # fmt: skip
    groups = alike_kernels(launched_kernels(replace(MADE, nodes=nodes)))
    assert sum(group.latency_ms for group in groups) == sum(node.latency_ms for node in nodes)
    assert [g.latency_ms for g in groups] == sorted((g.latency_ms for g in groups), reverse=True)
    assert len(groups) == len(set(drawn))


@pytest.mark.parametrize("nodes", [(), NODES[2:3], NODES[3:4]], ids=["none", "view", "copy"])
def test_a_prediction_with_next_to_nothing_in_it_still_makes_a_page(
    nodes: tuple[NodeEstimate, ...],
) -> None:
    bare = replace(MADE, nodes=nodes, macs=0, flops=0, compute_utilisation=0.0, notes=())
    assert _Page(predict_page(_given(bare))).count("section") == 4
    assert _Page(predict_page(_given(bare, bare))).count("details") >= 2


_POSITIVE = st.floats(1e-9, 1e15)


@given(st.lists(_POSITIVE, min_size=1, max_size=20))
def test_axes_hold_all_values_and_order_them(values: list[float]) -> None:
    whole = [max(1, round(value)) for value in values]
    axes: list[Axis] = [
        log_axis("x", values), linear_axis("x", values), linear_axis("x", values, exact=True),
        power_axis("x", whole), binary_axis("x", values, show=str),
    ]  # fmt: skip
    for axis in axes:
        places = [axis.at(value) for value in sorted(values)]
        assert all(0 <= place <= 1 for place in places)
        assert places == sorted(places)
        assert axis.low < axis.high
        slack = 1e-9 * axis.high
        assert all(axis.low - slack <= tick <= axis.high + slack for tick in axis.ticks)
        assert len(axis.ticks) <= 60


@given(st.lists(_POSITIVE, min_size=1, max_size=9))
def test_a_logarithmic_axis_has_a_few_ticks(values: list[float]) -> None:
    assert 2 <= len(log_axis("x", values).ticks) <= 9


def test_a_front_is_drawn_over_the_other_points() -> None:
    points = [
        Point(1, 3, "a", label="first"),
        Point(2, 2, "b"),
        Point(3, 3, "c"),
        Point(3, 1, "d"),
    ]
    made = scatter(points, x="latency, ms", y="energy, J", label="front", highlight=[0, 1, 3])
    found = _Page(made)
    marks = [attrs["class"] for _, attrs in found.tags if "mark" in attrs.get("class", "")]
    assert [("pale" in style) for style in marks] == [True, False, False, False]
    assert "first" in found.words
    assert 'class="front"' in made


def test_intervals_far_apart_get_a_logarithmic_axis_and_say_so() -> None:
    near = [Range("a", 2, 1, 3, "2"), Range("b", 3, 2, 4, "3")]
    far = [*near, Range("c", 300, 200, 400, "300")]
    assert "logarithmic" not in intervals(near, axis_label="ms", label="x")
    assert "ms, logarithmic" in intervals(far, axis_label="ms", label="x")


def test_a_long_table_is_folded_and_a_short_one_is_not() -> None:
    columns = (Column("name"), Column("ms", numeric=True))
    rows = [[f"n{i}", str(i)] for i in range(300)]
    assert table(columns, rows, caption="c").startswith("<details")
    assert not table(columns, rows[:5], caption="c").startswith("<details")


def test_a_page_can_be_built_from_sections_alone() -> None:
    found = _Page(page("Front", [Section("front", "Two of three", Html("<p>x</p>"))]))
    assert found.count("section") == 1
    assert "Two of three" in found.words


def test_every_kind_has_a_look_and_every_look_a_colour() -> None:
    assert set(kinds.GROUP_OF) == set(Kind)
    style = (resources.files("slicewise.app.html") / "page.css").read_text()
    for look in (*kinds.GROUP_OF.values(), *kinds.LIMITS.values()):
        assert f".{look.style} {{ color: var(--{look.style}); }}" in style
    assert len({(look.shape) for look in kinds.GROUPS}) == len(kinds.GROUPS)


def _palette() -> dict[str, tuple[str, str]]:
    style = (resources.files("slicewise.app.html") / "page.css").read_text()
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", style)
    return {name: (light, dark) for name, light, dark in found}


def _luminance(colour: str) -> float:
    # WCAG 2.2, relative luminance
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_words_and_marks_have_the_contrast_of_wcag_aa(theme: int) -> None:
    palette = {name: both[theme] for name, both in _palette().items()}
    for words, ground in (
        ("ink", "paper"), ("soft", "paper"), ("accent", "paper"), ("ink", "raised"),
        ("soft", "raised"), ("ink", "warn-paper"), ("warn", "warn-paper"),
    ):  # fmt: skip
        assert _contrast(palette[words], palette[ground]) >= 4.5, (words, ground)
    grounds = {"paper", "raised", "ink", "line", "faint", "warn-paper", "warn", "warn-line"}
    for mark in palette.keys() - grounds:
        assert _contrast(palette[mark], palette["paper"]) >= 3, mark


def test_a_notebook_shows_figures_with_intervals_and_the_codes_of_notes() -> None:
    words = " ".join(_Page(MADE._repr_html_()).words)
    for told in ("1.88 ms", "1.50 ms to 2.50 ms", "4270 items/s", "668 MiB", "op-unknown"):
        assert told in words
    several = PredictionSet((MODEL,), (MADE, ON_SLICE))._repr_html_()
    assert _Page(several).count("tr") == 3
    assert "tiny-gpu/1g.10gb" in several


def test_the_sweep_predicts_each_further_batch_once(light: Light) -> None:
    model = str(light("squeezenet"))
    result = predict_many([model], devices=[CARD], batches=[8])
    (sweep,) = sweep_models([model], result, devices=[], options=PredictOptions())
    assert sweep.failed  # no device: every further batch fails, and says why
    device = tiny_gpu()
    result = predict_many([model], devices=[device], batches=[8])
    (sweep,) = sweep_models([model], result, devices=[device], options=PredictOptions())
    assert sorted(made.batch for made in sweep.predictions) == sorted(BATCHES)
    assert not sweep.failed
    assert all(not made.nodes for made in sweep.predictions)


def test_the_command_writes_one_page_that_tells_how_to_make_it_again(
    tmp_path: Path, light: Light, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report.html"
    words = ["predict", str(light("squeezenet")), "--device", f"{CARD},{CARD}/2g.20gb"]
    words += ["--batch", "2", "--precision", "fp16", "--predictor", "roofline"]
    assert run([*words, "--html", str(target), "--json"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("{")
    assert err == ""
    found = _Page(target.read_text())
    shown = " ".join(" ".join(found.words).split())
    for told in (
        "--precision fp16", f"--device {CARD},{CARD}/2g.20gb", "--batch 2", "squeezenet",
        "--predictor roofline",
    ):  # fmt: skip
        assert told in shown
    assert "From batch" in shown or "still grows" in shown


@pytest.mark.parametrize("option", ["--html", "--trace"])
def test_a_page_never_replaces_a_model_or_another_output(
    option: str, tmp_path: Path, light: Light, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(light("squeezenet").read_bytes())
    before = model.read_bytes()
    assert run(["predict", str(model), "--device", CARD, option, str(model)]) == 2
    assert "is read as input" in capsys.readouterr().err
    assert model.read_bytes() == before
    both = str(tmp_path / "both")
    assert run(["predict", str(model), "--device", CARD, "--output", both, option, both]) == 2
    assert "asked for twice" in capsys.readouterr().err
    assert not Path(both).exists()
    assert run(["predict", str(model), "--device", CARD, option, str(tmp_path / "no" / "x")]) == 2
    assert "does not exist" in capsys.readouterr().err
