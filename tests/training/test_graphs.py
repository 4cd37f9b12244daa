"""The packed graphs: what they hold; tables drawn out to a batch are those of the graph."""

import numpy as np
import pytest

from slicewise.core.precision import PRECISIONS
from slicewise.testing.graphs import residual_cnn, transformer
from training import graphs
from training.tables import table_of

NAMES = ("resnet50@224x224", "levit_256@224x224", "levit_256@224x224+reparam")
KEPT = {
    str(kept.key): kept
    for module in ("resnet", "levit")
    for kept in graphs.kept(module)
    if str(kept.key) in NAMES
}


def test_nearly_every_listed_model_is_packed() -> None:
    listed = {str(key) for key in graphs.names()}
    packed = {str(key) for key, _ in graphs.packed()}
    assert len(listed & packed) >= 0.98 * len(listed)


def test_a_packed_resnet_is_the_resnet() -> None:
    kept = KEPT["resnet50@224x224"]
    assert kept.parameters == 25_557_032
    low, high = kept.graphs
    assert (low.batch_size, high.batch_size) == graphs.BATCHES
    assert low.tensors[low.inputs[0]].shape == (2, 3, 224, 224)
    assert high.tensors[high.inputs[0]].shape == (4, 3, 224, 224)
    assert sum(node.op_type == "Conv" for node in low.nodes) == 53


def test_merged_branches_are_a_graph_of_their_own() -> None:
    plain, merged = KEPT["levit_256@224x224"], KEPT["levit_256@224x224+reparam"]
    assert merged.parameters < plain.parameters
    assert len(merged.graphs[0].nodes) < len(plain.graphs[0].nodes)


def test_no_graph_tells_where_it_was_made() -> None:
    for kept in KEPT.values():
        assert kept.graphs[0].source is None
        assert {node.origin for node in kept.graphs[0].nodes} == {""}


@pytest.mark.parametrize("runtime", ["torch-eager", "torch-compile", "tensorrt"])
@pytest.mark.parametrize("build", [residual_cnn, transformer])
def test_a_table_drawn_out_is_the_table_of_that_batch(build: object, runtime: str) -> None:
    made = [build(batch) for batch in (2, 4, 32, 64)]  # type: ignore[operator]
    drawn = table_of((made[0], made[1]), precision=PRECISIONS["fp16"], runtime=runtime)
    true = table_of((made[2], made[3]), precision=PRECISIONS["fp16"], runtime=runtime)
    assert drawn is not None
    assert true is not None
    one, two = drawn.at(32), true.low

    def total(values: object, count: object) -> float:
        return float(np.asarray(values) @ np.asarray(count))

    for column in ("macs", "flops", "activation_bytes", "weight_bytes", "write_bytes"):
        assert total(getattr(one, column), drawn.count) == pytest.approx(
            total(getattr(two, column), true.count)
        )
