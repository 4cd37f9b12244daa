#!/bin/sh
# Tunes Triton kernels on parts of one NVIDIA GPU within 9 minutes: files in $OUT (default
# gpu-tune-out/), see benchmarks/gpu_tune/README.md. --device cpu --smoke is a short test.
set -u
here=$(cd "$(dirname "$0")/.." && pwd) || exit 1
OUT=${OUT:-gpu-tune-out}
mkdir -p "$OUT" || exit 1
OUT=$(cd "$OUT" && pwd) || exit 1
export OUT
export PYTHONPATH="$here/src:$here${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
cd "$here" || exit 1
# the program ends by itself; the limit is for a hang of the whole
exec timeout -k 8 532 "${PYTHON:-python3}" -m benchmarks.gpu_tune "$@"
