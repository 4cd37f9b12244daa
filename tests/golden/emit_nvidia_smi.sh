#!/bin/sh
# MIG mode and slices change on idle cards only: first stop what runs on the cards that change
# (nvidia-smi lists it). A slice that is in use is not touched. Needs root. It can be run again:
# what stands as planned stays, what is gone is passed over.
set -eu

is_sliced() {  # card
  [ "$(nvidia-smi -i "$1" --query-gpu=mig.mode.current --format=csv,noheader)" = Enabled ]
}

enable() {  # card
  is_sliced "$1" || nvidia-smi -i "$1" -mig 1
  is_sliced "$1" || {
    echo "card $1: MIG mode waits for a reset: nvidia-smi --gpu-reset -i $1; run this again" >&2
    exit 1
  }
}

disable() {  # card
  ! is_sliced "$1" || nvidia-smi -i "$1" -mig 0
}

instance() {  # card, profile, START:SIZE -> id of the slice that stands there, or nothing
  ! is_sliced "$1" || nvidia-smi mig -lgi -i "$1" |
    awk -v name="$2" -v at="$3" '$(NF-1) == at && $(NF-4) == name { print $(NF-2) }'
}

remove() {  # card, profile, START:SIZE
  id=$(instance "$1" "$2" "$3")
  if [ -z "$id" ]; then
    echo "card $1 has no $2 at $3 any more; nvidia-smi mig -lgi -i $1 shows what it has" >&2
    return
  fi
  nvidia-smi mig -dci -i "$1" -gi "$id"
  nvidia-smi mig -dgi -i "$1" -gi "$id"
}

make() {  # card, then for each slice: profile, START:SIZE, what makes it
  card=$1
  shift
  missing=
  while [ $# -gt 0 ]; do
    [ -n "$(instance "$card" "$1" "$2")" ] || missing="$missing,$3"
    shift 3
  done
  [ -z "$missing" ] || nvidia-smi mig -i "$card" -cgi "${missing#,}" -C || {
    echo "card $card: other slices stand in the way of these; remove those not planned" >&2
    echo "(nvidia-smi mig -lgi -i $card lists all), then run this again" >&2
    exit 1
  }
}

case "${1:-}" in
a100-sxm4-80gb)
  # card 0 (a100-sxm4-80gb): 2g.20gb@0 bert (batch 8); 1g.10gb@2 ResNet 50 (batch 1); 1g.10gb@3 ResNet 50 (batch 1); 3g.40gb@4 vgg (batch 16, 2 processes)
  # several processes share a slice through MPS: start nvidia-cuda-mps-control -d with CUDA_VISIBLE_DEVICES=MIG-UUID (nvidia-smi -L lists it)
  remove 0 1g.10gb 0:1
  make 0 \
    2g.20gb 0:2 14:0 \
    1g.10gb 2:1 19:2 \
    1g.10gb 3:1 19:3
  # card 1 (a100-sxm4-80gb): whole card llm (batch 8)
  disable 1
  # card 3 (a100-sxm4-80gb): not in the plan; its slices stay
  ;;
l4)
  # card 0 (l4): whole card vgg (batch 8)
  # has no MIG; nothing to do
  ;;
*)
  echo "usage: sh $0 a100-sxm4-80gb|l4" >&2
  exit 2
  ;;
esac
