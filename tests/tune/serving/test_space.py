"""Which settings there are: laws of the table of rules, and what is read from a graph."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from slicewise.core.errors import TuningError
from slicewise.flows.load import load
from slicewise.testing.onnx_models import model, save, weight
from slicewise.tune.backends.serving.settings import AS_IS, ONNXRUNTIME, OPENVINO, Settings
from slicewise.tune.backends.serving.space import (
    EXHAUSTIVE,
    INT8,
    INT8_DYNAMIC,
    INT8_HEAVY,
    RULES,
    Facts,
    all_settings,
    default_settings,
    has_branches,
    int8_kinds,
    score_outputs,
    thread_counts,
)

facts = st.builds(
    Facts,
    cores=st.integers(1, 12),
    batches=st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=2, unique=True).map(tuple),
    numerics=st.sampled_from([(AS_IS,), (AS_IS, INT8), (AS_IS, INT8, INT8_HEAVY, INT8_DYNAMIC)]),
    engines=st.sampled_from([(ONNXRUNTIME,), (ONNXRUNTIME, OPENVINO)]),
    has_branches=st.booleans(),
    is_throughput=st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(facts)
def test_settings_are_distinct_begin_with_the_default_and_break_no_rule(given_: Facts) -> None:
    found = all_settings(given_)
    assert found[0] == default_settings(given_)
    assert len({each.text for each in found}) == len(found)
    for each in found:
        assert not [rule.name for rule in RULES if rule.leaves_out(each, given_)]
        assert 1 <= each.requests <= each.threads <= given_.cores
        assert each.batch in given_.batches and each.numerics in given_.numerics
        assert given_.is_throughput or each.requests == 1


@settings(max_examples=40, deadline=None)
@given(facts)
def test_settings_are_read_as_they_are_written(given_: Facts) -> None:
    for each in all_settings(given_)[:50]:
        assert Settings.parse(each.text) == each


@given(st.integers(1, 300))
def test_thread_counts_ascend_to_all_cores(cores: int) -> None:
    counts = thread_counts(cores)
    assert counts[0] == 1 and counts[-1] == cores
    assert list(counts) == sorted(set(counts))


@pytest.mark.parametrize("name", [rule.name for rule in RULES])
def test_every_rule_leaves_something_out_that_no_other_does(name: str) -> None:
    others = tuple(rule for rule in RULES if rule.name != name)
    (rule,) = (rule for rule in RULES if rule.name == name)
    numerics = (AS_IS, INT8, INT8_DYNAMIC)
    worlds = [
        Facts(3, numerics=numerics, has_branches=branches, is_throughput=throughput)
        for branches in (False, True)
        for throughput in (False, True)
    ]
    knobs = Settings(threads=3)
    made = [
        replace(
            knobs, engine=engine, numerics=kind, threads=threads, requests=requests,
            spinning=spinning, graph_level=level, execution=execution, pinning=pinning,
        )
        for engine in (ONNXRUNTIME, OPENVINO)
        for kind in numerics
        for threads in (1, 2, 3)
        for requests in (1, 2, 3)
        for spinning in "10"
        for level in ("all", "basic")
        for execution in ("sequential", "parallel")
        for pinning in "01"
    ]  # fmt: skip
    assert any(
        rule.leaves_out(each, world) and not any(o.leaves_out(each, world) for o in others)
        for world in worlds
        for each in made
    )
    assert rule.why


def test_two_cores_are_few_enough_to_try_all() -> None:
    every = Facts(2, numerics=(AS_IS, INT8, INT8_HEAVY, INT8_DYNAMIC), has_branches=True)
    assert len(all_settings(every)) == 44 <= EXHAUSTIVE


@pytest.mark.parametrize(
    "text",
    ["", "{}x", '{"sideways":1}', "[1]", '{"threads": 2}', '{"threads":2}'],
)
def test_what_is_not_written_by_us_is_refused(text: str) -> None:
    with pytest.raises(TuningError, match="tune anew"):
        Settings.parse(text)


def _graph_of(folder: Path, *nodes: tuple[str, Sequence[str], str]) -> str:
    made = [helper.make_node(kind, list(reads), [out], name=out) for kind, reads, out in nodes]
    weights = [weight(name, 8, 8) for name in ("w1", "w2", "w3")] + [weight("b", 8)]
    return save(
        model(made, inputs={"x": [1, 8]}, outputs={"y": [1, 8]}, weights=weights),
        folder / "m.onnx",
    )


_CHAIN = (("MatMul", ("x", "w1"), "a"), ("Relu", ("a",), "r"), ("MatMul", ("r", "w2"), "y"))
_FORK = (
    ("MatMul", ("x", "w1"), "a"),
    ("MatMul", ("x", "w2"), "c"),
    ("Add", ("a", "c"), "s"),
    ("MatMul", ("s", "w3"), "y"),
)
_SKIP = (*_CHAIN[:2], ("MatMul", ("r", "w2"), "m"), ("Add", ("m", "x"), "y"))


@pytest.mark.parametrize(("nodes", "expected"), [(_CHAIN, False), (_FORK, True), (_SKIP, False)])
def test_branches_are_heavy_operators_that_do_not_wait(
    tmp_path: Path, nodes: tuple[tuple[str, Sequence[str], str], ...], expected: bool
) -> None:
    assert has_branches(load(_graph_of(tmp_path, *nodes))) is expected


def test_dynamic_int8_is_for_models_of_matrix_products(tmp_path: Path) -> None:
    graph = load(_graph_of(tmp_path, *_CHAIN))
    assert int8_kinds(graph, {}) == (INT8, INT8_HEAVY, INT8_DYNAMIC)
    assert int8_kinds(graph, {"a": 0.1, "y": 0.05, "r": 9.0}) == (INT8, INT8_HEAVY)
    relu = load(_graph_of(tmp_path, ("Relu", ("x",), "y")))
    assert int8_kinds(relu, {}) == ()


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (("Softmax", ("r",), "y"), True),
        (("MatMul", ("r", "w2"), "y"), True),
        (("Sigmoid", ("r",), "y"), False),
        (("MatMul", ("r", "r"), "y"), False),
    ],
)
def test_scores_are_what_classifiers_end_in(
    tmp_path: Path, last: tuple[str, Sequence[str], str], expected: bool
) -> None:
    if last[1] == ("r", "r"):
        square = (("Transpose", ("r",), "t"), ("MatMul", ("t", "r"), "y"))
        graph = load(_graph_of(tmp_path, *_CHAIN[:2], *square))
    else:
        graph = load(_graph_of(tmp_path, *_CHAIN[:2], last))
    assert bool(score_outputs(graph)) is expected
    biased = (*_CHAIN[:2], ("MatMul", ("r", "w2"), "m"), ("Add", ("b", "m"), "y"))
    assert score_outputs(load(_graph_of(tmp_path, *biased))) == {"y"}
