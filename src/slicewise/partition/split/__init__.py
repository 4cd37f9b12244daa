"""Stage files from an ONNX model: placing, writing, annotating, and split points for others."""
