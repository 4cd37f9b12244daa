"""YOLOv5 (release 6), YOLOv8 and YOLO11: detection, segmentation, pose and classification heads.

Numbers and wiring as in the configuration files of the Ultralytics repositories; blocks CSP
(Wang et al., arXiv 1911.11929), spatial pyramid pooling (He et al., 1406.4729) and path
aggregation (Liu et al., 1803.01534). Outputs are the decoded boxes before non-maximum
suppression.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import onnx

from benchmarks.models.blocks import act, conv_bn
from benchmarks.models.net import BATCH, Net, Value


@dataclass(frozen=True, slots=True)
class Yolo:
    """Numbers of one member."""

    version: int
    width: float
    depth: float
    widest: int = 1024
    task: str = "detect"  # detect, segment, pose, classify
    classes: int = 80
    levels: int = 3  # 4 for the P6 models
    deep: bool = False  # YOLO11 m, l, x: nested CSP blocks everywhere

    def channels(self, count: int) -> int:
        """`count` scaled by the width, a multiple of 8."""
        return math.ceil(min(count, self.widest) * self.width / 8) * 8

    def repeats(self, count: int) -> int:
        """`count` scaled by the depth."""
        return max(1, round(count * self.depth))


def _conv(
    net: Net, x: Value, out: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> Value:
    return conv_bn(net, x, out, kernel, stride=stride, groups=groups, activation="silu")


def _bottleneck(
    net: Net, x: Value, middle: int, *, shortcut: bool, first_kernel: int = 1
) -> Value:
    y = _conv(net, _conv(net, x, middle, first_kernel), x.channels, 3)
    return net.add(x, y) if shortcut else y


def _c3(
    net: Net, x: Value, out: int, count: int, *, shortcut: bool, first_kernel: int = 1
) -> Value:
    """CSP block with three convolutions (v5; inner block of YOLO11)."""
    half = out // 2
    y, skip = _conv(net, x, half), _conv(net, x, half)
    for _ in range(count):
        y = _bottleneck(net, y, half, shortcut=shortcut, first_kernel=first_kernel)
    return _conv(net, net.concat([y, skip]), out)


def _c2f(
    net: Net, x: Value, out: int, count: int, *,
    shortcut: bool, ratio: float = 0.5, nested: bool | None = None,
) -> Value:  # fmt: skip
    """CSP block that keeps every step; `nested` (YOLO11): C3 or a narrow bottleneck inside."""
    half = int(out * ratio)
    done = list(net.split(_conv(net, x, 2 * half), (half, half)))
    for _ in range(count):
        if nested:
            y = _c3(net, done[-1], half, 2, shortcut=shortcut, first_kernel=3)
        else:
            middle = half if nested is None else half // 2
            y = _bottleneck(net, done[-1], middle, shortcut=shortcut, first_kernel=3)
        done.append(y)
    return _conv(net, net.concat(done), out)


def _pyramid_pool(net: Net, x: Value) -> Value:
    """Three chained poolings, concatenated (SPPF)."""
    done = [_conv(net, x, x.channels // 2)]
    for _ in range(3):
        done.append(net.max_pool(done[-1], 5, stride=1))
    return _conv(net, net.concat(done), x.channels)


def _position_attention(net: Net, x: Value, count: int) -> Value:
    """YOLO11's attention over the coarsest map, on half of the channels (C2PSA)."""
    half = x.channels // 2
    kept, y = net.split(_conv(net, x, 2 * half), (half, half))
    heads, size = half // 64, 64
    for _ in range(count):
        y = net.add(y, _map_attention(net, y, heads, size))
        inner = _conv(net, y, 2 * half)
        y = net.add(y, conv_bn(net, inner, half, activation=""))
    return _conv(net, net.concat([kept, y]), x.channels)


def _map_attention(net: Net, x: Value, heads: int, size: int) -> Value:
    _, c, h, w = x.shape
    packed = conv_bn(net, x, 2 * c, activation="")
    flat = net.reshape(packed, BATCH, heads, 2 * size, h * w)
    q, k, v = net.split(flat, (size // 2, size // 2, size), axis=2)
    scores = net.mul(net.matmul(net.transpose(q, 0, 1, 3, 2), k), net.scalar((size // 2) ** -0.5))
    mixed = net.matmul(v, net.transpose(net.softmax(scores), 0, 1, 3, 2))
    position = conv_bn(net, net.reshape(v, BATCH, c, h, w), c, 3, groups=c, activation="")
    y = net.add(net.reshape(mixed, BATCH, c, h, w), position)
    return conv_bn(net, y, c, activation="")


def _stage(net: Net, x: Value, out: int, count: int, index: int, kind: Yolo) -> Value:
    """The CSP block after the `index`-th strided convolution of the backbone."""
    out, count = kind.channels(out), kind.repeats(count)
    if kind.version == 5:
        return _c3(net, x, out, count, shortcut=True)
    if kind.version == 8:
        return _c2f(net, x, out, count, shortcut=True)
    ratio = 0.25 if index < 2 else 0.5
    return _c2f(net, x, out, count, shortcut=True, ratio=ratio, nested=kind.deep or index >= 2)


# out of the strided convolution, out and count of the block, by version
_BACKBONE: Mapping[int, tuple[tuple[int, int, int], ...]] = {
    5: ((128, 128, 3), (256, 256, 6), (512, 512, 9), (1024, 1024, 3)),
    8: ((128, 128, 3), (256, 256, 6), (512, 512, 6), (1024, 1024, 3)),
    11: ((128, 256, 2), (256, 512, 2), (512, 512, 2), (1024, 1024, 2)),
}
_BACKBONE_P6 = ((128, 128, 3), (256, 256, 6), (512, 512, 9), (768, 768, 3), (1024, 1024, 3))


def _backbone(net: Net, x: Value, kind: Yolo) -> list[Value]:
    """The maps after each block, finest first."""
    kernel, pads = (6, (2, 2, 2, 2)) if kind.version == 5 else (3, None)
    x = conv_bn(net, x, kind.channels(64), kernel, stride=2, pads=pads, activation="silu")
    maps = []
    rows = _BACKBONE_P6 if kind.levels == 4 else _BACKBONE[kind.version]
    for i, (narrow, out, count) in enumerate(rows):
        x = _conv(net, x, kind.channels(narrow), 3, 2)
        x = _stage(net, x, out, count, i, kind)
        maps.append(x)
    if kind.task != "classify":
        maps[-1] = _pyramid_pool(net, maps[-1])
    if kind.version == 11:
        maps[-1] = _position_attention(net, maps[-1], kind.repeats(2))
    return maps


def _neck_block(net: Net, x: Value, out: int, kind: Yolo, *, last: bool = False) -> Value:
    out = kind.channels(out)
    if kind.version == 5:
        return _c3(net, x, out, kind.repeats(3), shortcut=False)
    if kind.version == 8:
        return _c2f(net, x, out, kind.repeats(3), shortcut=False)
    return _c2f(net, x, out, kind.repeats(2), shortcut=True, nested=kind.deep or last)


def _neck(net: Net, maps: list[Value], kind: Yolo) -> list[Value]:
    """Path aggregation: top down, then bottom up; the maps that the heads read."""
    widths = (256, 512, 768, 1024) if kind.levels == 4 else (256, 512, 1024)
    pyramid = maps[-kind.levels :]
    y, laterals = pyramid[-1], []
    for i in reversed(range(kind.levels - 1)):
        if kind.version == 5:
            y = _conv(net, y, kind.channels(widths[i]))
        laterals.append(y)
        y = _neck_block(net, net.concat([net.resize(y, 2), pyramid[i]]), widths[i], kind)
    outputs = [y]
    for i, lateral in enumerate(reversed(laterals), start=1):
        y = _conv(net, y, kind.channels(widths[i - 1]), 3, 2)
        is_last = i == kind.levels - 1
        y = _neck_block(net, net.concat([y, lateral]), widths[i], kind, last=is_last)
        outputs.append(y)
    return outputs


def _anchor_head(net: Net, maps: list[Value], kind: Yolo) -> Value:
    """v5: three anchors a cell; box, objectness, classes and mask coefficients decoded."""
    extra = 32 if kind.task == "segment" else 0
    each = 5 + kind.classes + extra
    done = []
    for x in maps:
        _, _, h, w = x.shape
        y = net.conv(x, 3 * each, bias=True)
        y = net.transpose(net.reshape(y, BATCH, 3, each, h, w), 0, 1, 3, 4, 2)
        centre, extent, rest = net.split(net.unary("Sigmoid", y), (2, 2, each - 4), axis=4)
        grid = net.weight(1, 3, h, w, 2, stem="buffer")
        centre = net.mul(net.add(net.mul(centre, net.scalar(2.0)), grid), net.scalar(8.0))
        twice = net.binary("Pow", net.mul(extent, net.scalar(2.0)), net.scalar(2.0))
        extent = net.mul(twice, net.weight(1, 3, h, w, 2, stem="buffer"))
        done.append(
            net.reshape(net.concat([centre, extent, rest], axis=4), BATCH, 3 * h * w, each)
        )
    return net.concat(done)


def _tower(net: Net, x: Value, width: int, out: int) -> Value:
    y = _conv(net, _conv(net, x, width, 3), width, 3)
    return net.conv(y, out, bias=True)


def _class_tower(net: Net, x: Value, width: int, kind: Yolo) -> Value:
    if kind.version == 8:
        return _tower(net, x, width, kind.classes)
    for _ in range(2):
        x = _conv(net, _conv(net, x, x.channels, 3, groups=x.channels), width)
    return net.conv(x, kind.classes, bias=True)


def _free_head(net: Net, maps: list[Value], kind: Yolo) -> Value:
    """v8 and 11: a distribution over 16 distances for each side of the box (arXiv 2006.04388)."""
    first = maps[0].channels
    box_width = max(16, first // 4, 64)
    class_width = max(first, min(kind.classes, 100))
    rows = []
    for x in maps:
        boxes = _tower(net, x, box_width, 64)
        both = net.concat([boxes, _class_tower(net, x, class_width, kind)])
        rows.append(net.reshape(both, BATCH, both.channels, x.shape[2] * x.shape[3]))
    flat = net.concat(rows, axis=2)
    count = flat.shape[2]
    boxes, scores = net.split(flat, (64, kind.classes))
    sides = net.transpose(net.reshape(boxes, BATCH, 4, 16, count), 0, 2, 1, 3)
    expected = net.conv(net.softmax(sides, axis=1), 1)
    near, far = net.split(net.reshape(expected, BATCH, 4, count), (2, 2))
    anchors = net.weight(1, 2, count, stem="buffer")
    low, high = net.binary("Sub", anchors, near), net.add(anchors, far)
    centre = net.binary("Div", net.add(low, high), net.scalar(2.0))
    box = net.concat([centre, net.binary("Sub", high, low)])
    box = net.mul(box, net.weight(1, count, stem="buffer"))
    return net.concat([box, net.unary("Sigmoid", scores)])


def _extra_rows(net: Net, maps: list[Value], out: int) -> Value:
    """Mask coefficients or key points of each cell."""
    width = max(maps[0].channels // 4, out)
    rows = [
        net.reshape(_tower(net, x, width, out), BATCH, out, x.shape[2] * x.shape[3]) for x in maps
    ]
    return net.concat(rows, axis=2)


def _prototypes(net: Net, x: Value, kind: Yolo) -> Value:
    """32 mask prototypes at twice the finest resolution."""
    width = kind.channels(256)
    y = _conv(net, x, width, 3)
    if kind.version == 5:
        y = net.resize(y, 2)
    else:
        weights = [net.weight(width, width, 2, 2), net.weight(width, stem="bias")]
        n, _, h, w = y.shape
        y = net.node(
            "ConvTranspose", [y, *weights], (n, width, 2 * h, 2 * w), strides=[2, 2],
            kernel_shape=[2, 2],
        )  # fmt: skip
    return _conv(net, _conv(net, y, width, 3), 32)


def yolo(kind: Yolo, size: int) -> onnx.ModelProto:
    """Return the network for images of `size` x `size`."""
    net = Net(f"yolov{kind.version}")
    maps = _backbone(net, net.image(size), kind)
    if kind.task == "classify":
        y = _conv(net, maps[-1], 1280)
        y = net.linear(net.flatten(net.global_pool(y)), 1000)
        return net.model(net.softmax(y) if kind.version > 5 else y)
    maps = _neck(net, maps, kind)
    boxes = _anchor_head(net, maps, kind) if kind.version == 5 else _free_head(net, maps, kind)
    if kind.task == "segment" and kind.version > 5:
        boxes = net.concat([boxes, _extra_rows(net, maps, 32)])
    if kind.task == "pose":
        boxes = net.concat([boxes, act(net, _extra_rows(net, maps, 51), "sigmoid")])
    if kind.task == "segment":
        return net.model(boxes, _prototypes(net, maps[0], kind))
    return net.model(boxes)


_V5 = {"n": (0.25, 0.33), "s": (0.5, 0.33), "m": (0.75, 0.67), "l": (1.0, 1.0), "x": (1.25, 1.33)}
_V8 = {
    "n": (0.25, 0.33, 1024), "s": (0.5, 0.33, 1024), "m": (0.75, 0.67, 768), "l": (1.0, 1.0, 512),
    "x": (1.25, 1.0, 512),
}  # fmt: skip
_V11 = {
    "n": (0.25, 0.5, 1024), "s": (0.5, 0.5, 1024), "m": (1.0, 0.5, 512), "l": (1.0, 1.0, 512),
    "x": (1.5, 1.0, 512),
}  # fmt: skip
_TASKS = {"": "detect", "-seg": "segment", "-pose": "pose", "-cls": "classify"}


def _members() -> dict[str, Yolo]:
    table: dict[str, Yolo] = {}
    for name, numbers in _V5.items():
        plain = Yolo(5, *numbers)
        table[f"yolov5{name}6"] = replace(plain, levels=4)
        for suffix in ("", "-seg", "-cls"):
            table[f"yolov5{name}{suffix}"] = replace(plain, task=_TASKS[suffix])
    for suffix, task in _TASKS.items():
        for name, scale in _V8.items():
            classes = 1 if task == "pose" else 80
            kind = Yolo(8, *scale, task=task, classes=classes)
            # the classification models are not capped
            table[f"yolov8{name}{suffix}"] = (
                replace(kind, widest=1024) if task == "classify" else kind
            )
        for name, scale in _V11.items():
            classes = 1 if task == "pose" else 80
            table[f"yolo11{name}{suffix}"] = Yolo(
                11, *scale, task=task, classes=classes, deep=name in "mlx"
            )
    for name, scale in _V8.items():
        table[f"yolov8{name}-oiv7"] = Yolo(8, *scale, classes=601)
    return table


MODELS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    name: partial(yolo, kind) for name, kind in _members().items()
}
