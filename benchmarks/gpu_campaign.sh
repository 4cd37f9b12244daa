#!/bin/sh
# Measures one NVIDIA GPU within 9 minutes: files in $OUT (default gpu-out/), see
# benchmarks/gpu_campaign/README.md. Options are passed on: --device cpu --smoke is a short test.
set -u
here=$(cd "$(dirname "$0")/.." && pwd) || exit 1
OUT=${OUT:-gpu-out}
mkdir -p "$OUT" || exit 1
OUT=$(cd "$OUT" && pwd) || exit 1
export OUT
export PYTHONPATH="$here/src:$here${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
cd "$here" || exit 1
# the campaign ends by itself; the limit is for a hang of the whole
exec timeout -k 8 532 "${PYTHON:-python3}" -m benchmarks.gpu_campaign "$@"
