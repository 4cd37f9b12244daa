"""Calibration judged on the CPU at hand: half of the families calibrate, the others are predicted.

slicewise campaign benchmarks/cpu_zoo/spec.yaml --prepare   # once; needs no quiet machine
slicewise campaign benchmarks/cpu_zoo/spec.yaml             # an hour, can be resumed
python -m benchmarks.cpu_zoo                                # the tables
"""
