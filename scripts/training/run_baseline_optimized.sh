#!/usr/bin/env bash
# Trains the balanced preset: LSS + Swin on nuScenes with batch 6 in fp16.
#
#   bash scripts/training/run_baseline_optimized.sh [further options of aerie train]
#
# DATA_ROOT, WORK_DIR, GPU_ID and AERIE (the program) may be set in the environment. For example
#   DATA_ROOT=/data/nuscenes bash scripts/training/run_baseline_optimized.sh --auto-resume
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

work_dir=${WORK_DIR:-runs/baseline_optimized}
gpu_id=${GPU_ID:-0}
aerie=${AERIE:-build/aerie}
if ! command -v "$aerie" >/dev/null; then
  aerie=aerie
  command -v aerie >/dev/null || {
    echo "there is no aerie program: build it, or name it in AERIE" >&2
    exit 2
  }
fi

options=()
if [[ -n ${DATA_ROOT:-} ]]; then
  options=(--cfg-options "data.train.data_root=$DATA_ROOT" "data.val.data_root=$DATA_ROOT")
fi
exec "$aerie" train configs/baseline/lss_swin_nuscenes_optimized.py \
  --work-dir "$work_dir" --gpu-ids "$gpu_id" "$@" "${options[@]}"
