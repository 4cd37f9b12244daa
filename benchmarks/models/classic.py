"""The first generation: AlexNet, VGG, SqueezeNet, GoogLeNet, Inception v3, DenseNet.

Krizhevsky, arXiv 1404.5997; Simonyan & Zisserman, 1409.1556; Iandola et al., 1602.07360; Szegedy
et al., 1409.4842 and 1512.00567; Huang et al., 1608.06993. Layer numbers as in torchvision.
"""

from collections.abc import Callable, Mapping
from functools import partial

import onnx

from benchmarks.models.blocks import act, classifier, conv_bn
from benchmarks.models.net import Net, Value

_VGG = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}


def _conv_relu(net: Net, x: Value, out: int, kernel: int, **how: object) -> Value:
    return act(net, net.conv(x, out, kernel, bias=True, **how), "relu")  # type: ignore[arg-type]


def _dense_head(net: Net, x: Value, classes: int = 1000) -> Value:
    for width in (4096, 4096):
        x = act(net, net.linear(x, width), "relu")
    return net.linear(x, classes)


def alexnet(size: int) -> onnx.ModelProto:
    """AlexNet as in 'one weird trick' (one column)."""
    net = Net("alexnet")
    x = _conv_relu(net, net.image(size), 64, 11, stride=4, pads=(2, 2, 2, 2))
    x = net.max_pool(x, 3, stride=2, pad=0)
    x = net.max_pool(_conv_relu(net, x, 192, 5), 3, stride=2, pad=0)
    for width in (384, 256, 256):
        x = _conv_relu(net, x, width, 3)
    x = net.max_pool(x, 3, stride=2, pad=0)
    # the adaptive pool to 6 x 6 is the identity at 224
    return net.model(_dense_head(net, net.flatten(x)))


def vgg(depth: int, normed: bool, size: int) -> onnx.ModelProto:
    """VGG of 11 to 19 layers, with or without batch normalisation (224 pixels)."""
    net = Net(f"vgg{depth}")
    x = net.image(size)
    for width, count in zip((64, 128, 256, 512, 512), _VGG[depth], strict=True):
        for _ in range(count):
            x = net.conv(x, width, 3, bias=True)
            x = act(net, net.batch_norm(x) if normed else x, "relu")
        x = net.max_pool(x, 2, pad=0)
    return net.model(_dense_head(net, net.flatten(x)))


def vgg_as_convolutions(depth: int, normed: bool, size: int) -> onnx.ModelProto:
    """VGG with its first two dense layers as 7 x 7 and 1 x 1 convolutions (timm)."""
    net = Net(f"vgg{depth}")
    x = net.image(size)
    for width, count in zip((64, 128, 256, 512, 512), _VGG[depth], strict=True):
        for _ in range(count):
            x = net.conv(x, width, 3, bias=True)
            x = act(net, net.batch_norm(x) if normed else x, "relu")
        x = net.max_pool(x, 2, pad=0)
    x = _conv_relu(net, x, 4096, 7, pads=(0, 0, 0, 0))
    return net.model(classifier(net, _conv_relu(net, x, 4096, 1)))


def squeezenet(version: str, ceil: bool, size: int) -> onnx.ModelProto:
    """SqueezeNet 1.0 or 1.1; `ceil`: pools round up (torchvision) or down (Paddle)."""
    net = Net("squeezenet")
    first, pools = ((96, 7), (3, 7)) if version == "1_0" else ((64, 3), (2, 4))
    x = _conv_relu(net, net.image(size), *first, stride=2, pads=(0, 0, 0, 0))
    x = net.max_pool(x, 3, stride=2, pad=0, ceil=ceil)
    for i, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        if i in pools:
            x = net.max_pool(x, 3, stride=2, pad=0, ceil=ceil)
        narrow = _conv_relu(net, x, squeeze, 1)
        wide = [_conv_relu(net, narrow, 4 * squeeze, k) for k in (1, 3)]
        x = net.concat(wide)
    return net.model(net.flatten(net.global_pool(_conv_relu(net, x, 1000, 1))))


_INCEPTION = (
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (),
    (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128), (),
    (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
)  # fmt: skip


def googlenet(kernel: int, normed: bool, size: int) -> onnx.ModelProto:
    """GoogLeNet; third branch of `kernel`: 3, normalised (torchvision) or 5, plain (paper).

    The two response normalisations of the paper are left out.
    """
    net = Net("googlenet")

    def conv(x: Value, out: int, kernel: int = 1, stride: int = 1) -> Value:
        if normed:
            return conv_bn(net, x, out, kernel, stride=stride)
        return _conv_relu(net, x, out, kernel, stride=stride)

    x = net.max_pool(conv(net.image(size), 64, 7, 2), 3, stride=2, pad=0, ceil=True)
    x = conv(conv(x, 64), 192, 3)
    x = net.max_pool(x, 3, stride=2, pad=0, ceil=True)
    for i, widths in enumerate(_INCEPTION):
        if not widths:
            x = net.max_pool(x, 3 if i == 2 else 2, stride=2, pad=0, ceil=True)
            continue
        one, narrow3, wide3, narrow5, wide5, pooled = widths
        branches = [
            conv(x, one),
            conv(conv(x, narrow3), wide3, 3),
            conv(conv(x, narrow5), wide5, kernel),
            conv(net.max_pool(x, 3, stride=1, ceil=True), pooled),
        ]
        x = net.concat(branches)
    return net.model(classifier(net, x))


def _chain(net: Net, x: Value, *layers: tuple[int, int | tuple[int, int]]) -> Value:
    for width, kernel in layers:
        x = conv_bn(net, x, width, kernel)
    return x


def _valid(net: Net, x: Value, out: int, kernel: int, stride: int = 1) -> Value:
    return conv_bn(net, x, out, kernel, stride=stride, pads=(0, 0, 0, 0))


def _pooled(net: Net, x: Value, out: int) -> Value:
    return conv_bn(net, net.avg_pool(x, 3, stride=1), out)


def _inception_c(net: Net, x: Value, width: int) -> Value:
    row, column = (1, 7), (7, 1)
    first = _chain(net, x, (width, 1), (width, row), (192, column))
    deep = ((width, 1), (width, column), (width, row), (width, column), (192, row))
    return net.concat([conv_bn(net, x, 192), first, _chain(net, x, *deep), _pooled(net, x, 192)])


def _inception_e(net: Net, x: Value) -> Value:
    three = conv_bn(net, x, 384)
    double = _chain(net, x, (448, 1), (384, 3))
    parts = [conv_bn(net, x, 320)]
    for y in (three, double):
        parts.append(net.concat([conv_bn(net, y, 384, k) for k in ((1, 3), (3, 1))]))
    return net.concat([*parts, _pooled(net, x, 192)])


def inception_v3(size: int) -> onnx.ModelProto:
    """Inception v3 without its auxiliary head."""
    net = Net("inception_v3")
    x = _valid(net, _valid(net, net.image(size), 32, 3, 2), 32, 3)
    x = net.max_pool(conv_bn(net, x, 64, 3), 3, stride=2, pad=0)
    x = _valid(net, conv_bn(net, x, 80, 1), 192, 3)
    x = net.max_pool(x, 3, stride=2, pad=0)
    for pooled in (32, 64, 64):
        double = _chain(net, x, (64, 1), (96, 3), (96, 3))
        five = _chain(net, x, (48, 1), (64, 5))
        x = net.concat([conv_bn(net, x, 64), five, double, _pooled(net, x, pooled)])
    double = _valid(net, _chain(net, x, (64, 1), (96, 3)), 96, 3, 2)
    x = net.concat([_valid(net, x, 384, 3, 2), double, net.max_pool(x, 3, stride=2, pad=0)])
    for width in (128, 160, 160, 192):
        x = _inception_c(net, x, width)
    three = _valid(net, conv_bn(net, x, 192), 320, 3, 2)
    seven = _valid(net, _chain(net, x, (192, 1), (192, (1, 7)), (192, (7, 1))), 192, 3, 2)
    x = net.concat([three, seven, net.max_pool(x, 3, stride=2, pad=0)])
    for _ in range(2):
        x = _inception_e(net, x)
    return net.model(classifier(net, x))


_DENSENET = {
    "densenet121": (32, 64, (6, 12, 24, 16)),
    "densenet161": (48, 96, (6, 12, 36, 24)),
    "densenet169": (32, 64, (6, 12, 32, 32)),
    "densenet201": (32, 64, (6, 12, 48, 32)),
    "densenet264": (32, 64, (6, 12, 64, 48)),
    "densenet264d": (48, 96, (6, 12, 64, 48)),
    "densenet264_k48": (48, 96, (6, 12, 64, 48)),
}


def densenet(
    growth: int, first: int, depths: tuple[int, ...], size: int, *, deep_stem: bool = False
) -> onnx.ModelProto:
    """DenseNet: each layer reads all earlier ones of its block, concatenated anew."""
    net = Net("densenet")
    if deep_stem:
        x = conv_bn(net, net.image(size), first // 2, 3, stride=2)
        x = conv_bn(net, conv_bn(net, x, first // 2, 3), first, 3)
    else:
        x = conv_bn(net, net.image(size), first, 7, stride=2)
    x = net.max_pool(x, 3, stride=2)
    for stage, depth in enumerate(depths):
        seen = [x]
        for _ in range(depth):
            y = net.concat(seen) if len(seen) > 1 else x
            y = net.conv(act(net, net.batch_norm(y), "relu"), 4 * growth)
            seen.append(net.conv(act(net, net.batch_norm(y), "relu"), growth, 3))
        x = act(net, net.batch_norm(net.concat(seen)), "relu")
        if stage + 1 < len(depths):
            x = net.avg_pool(net.conv(x, x.channels // 2), 2, pad=0)
    return net.model(classifier(net, x))


MODELS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    "alexnet": alexnet,
    **{f"vgg{depth}": partial(vgg, depth, False) for depth in _VGG},
    **{f"vgg{depth}_bn": partial(vgg, depth, True) for depth in _VGG},
    **{f"vgg{depth}_conv": partial(vgg_as_convolutions, depth, False) for depth in _VGG},
    **{f"vgg{depth}_bn_conv": partial(vgg_as_convolutions, depth, True) for depth in _VGG},
    "squeezenet1_0": partial(squeezenet, "1_0", True),
    "squeezenet1_1": partial(squeezenet, "1_1", True),
    "squeezenet1_0_floor": partial(squeezenet, "1_0", False),
    "squeezenet1_1_floor": partial(squeezenet, "1_1", False),
    "googlenet": partial(googlenet, 3, True),
    "googlenet_paper": partial(googlenet, 5, False),
    "inception_v3": inception_v3,
    **{
        name: partial(densenet, *numbers, deep_stem=name.endswith("d"))
        for name, numbers in _DENSENET.items()
    },
    "densenet121d": partial(densenet, 32, 64, (6, 12, 24, 16), deep_stem=True),
}
