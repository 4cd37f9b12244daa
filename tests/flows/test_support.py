"""`support` lists every operator of a model, bodies and both branches of an If included."""

from dataclasses import replace

import pytest

from slicewise.core.cost import Kind
from slicewise.core.coverage import Coverage
from slicewise.core.graph import Graph
from slicewise.core.precision import DType
from slicewise.flows.support import support
from slicewise.testing.graphs import Sketch


def branch(last: str, *, domain: str = "") -> Graph:
    body = Sketch("branch")
    hidden = body.node("MatMul", (body.input(1, 4), body.constant(4, 8)), (1, 8))
    body.node(last, (hidden,), (1, 8), domain=domain)
    return body.graph()


def choice(then: Graph, other: Graph) -> Graph:
    sketch = Sketch()
    flag = sketch.input(dtype=DType.BOOL)
    sketch.node("If", (flag,), (1, 8), bodies=(then, other))
    return sketch.graph()


def listed(graph: Graph) -> dict[str, tuple[Kind, int, Coverage]]:
    operators = support(graph).operators
    assert len({each.op_type for each in operators}) == len(operators)
    return {each.op_type: (each.kind, each.count, each.coverage) for each in operators}


@pytest.mark.parametrize("swapped", [False, True])
def test_branches_of_as_many_nodes_are_not_mixed_up(swapped: bool) -> None:
    branches = [branch("Identity"), branch("Relu")]
    if swapped:
        branches.reverse()
    assert listed(choice(*branches)) == {
        "If": (Kind.CONTROL, 1, Coverage.FORMULA),
        "MatMul": (Kind.MATMUL, 2, Coverage.FORMULA),
        "Identity": (Kind.VIEW, 1, Coverage.FORMULA),
        "Relu": (Kind.ELEMENTWISE, 1, Coverage.FORMULA),
    }


def test_an_unknown_operator_in_the_cheaper_branch_is_listed() -> None:
    cheap = branch("Magic", domain="com.example")
    small = replace(cheap, nodes=cheap.nodes[1:])
    found = support(choice(branch("Relu"), small))
    assert not found.covered
    unknown = [each for each in found.operators if each.coverage is Coverage.UNKNOWN]
    assert [(each.domain, each.op_type, each.kind) for each in unknown] == [
        ("com.example", "Magic", Kind.OPAQUE)
    ]


def test_branches_within_branches_and_loops_are_listed() -> None:
    inner = choice(branch("Relu"), branch("Identity"))
    sketch = Sketch()
    sketch.node("Loop", ("", "", sketch.input(1, 4)), (1, 8), bodies=(inner,), repeats=3)
    outer = choice(sketch.graph(), branch("Tanh"))
    counts = {each.op_type: each.count for each in support(outer).operators}
    assert counts == {"If": 2, "Loop": 1, "MatMul": 3, "Relu": 1, "Identity": 1, "Tanh": 1}
