#!/usr/bin/env bash
# Trains the balanced preset: LSS + Swin on nuScenes with batch 6 in fp16.
#
#   bash scripts/training/run_baseline_optimized.sh [further options of aerie train]
#
# DATA_ROOT, WORK_DIR, GPU_ID and AERIE (the program) may be set in the environment. For example
#   DATA_ROOT=/data/nuscenes bash scripts/training/run_baseline_optimized.sh --auto-resume
#   DATA_ROOT=town bash scripts/training/run_baseline_optimized.sh --options runner.max_iters=100
set -euo pipefail
# Paths are meant from where the script was called.
for name in DATA_ROOT WORK_DIR; do
  [[ -n ${!name:-} ]] && printf -v "$name" '%s' "$(realpath -m -- "${!name}")"
done
if [[ ${AERIE:-} == */* ]]; then AERIE=$(realpath -m -- "$AERIE"); fi
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

work_dir=${WORK_DIR:-runs/baseline_optimized}
gpu_id=${GPU_ID:-0}
aerie=${AERIE:-build/aerie}
if ! command -v "$aerie" >/dev/null; then
  if [[ -n ${AERIE:-} ]] || ! command -v aerie >/dev/null; then
    echo "there is no program '$aerie': build it with make, or name it in AERIE" >&2
    exit 2
  fi
  aerie=aerie
fi

# As options of their own, which take any path: values of --options lose spaces and are lists at commas.
options=()
if [[ -n ${DATA_ROOT:-} ]]; then
  options=(--data.train.data_root "$DATA_ROOT" --data.val.data_root "$DATA_ROOT")
fi
exec "$aerie" train configs/baseline/lss_swin_nuscenes_optimized.py \
  --work-dir "$work_dir" --gpu-ids "$gpu_id" "${options[@]}" "$@"
