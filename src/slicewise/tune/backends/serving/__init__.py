"""The engine `serving`: settings of onnxruntime and OpenVINO for a model on a share of the CPU."""

from slicewise.tune.backends.serving.engine import ENGINE as ENGINE
