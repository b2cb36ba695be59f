#!/usr/bin/env bash
# Trains on several GPUs of this machine, with the arguments of mmsegmentation's script of the same name.
#
#   scripts/dist_train.sh CONFIG GPUS [options of aerie train]
#
# aerie starts a process for each GPU itself. Several machines: set NNODES, NODE_RANK, MASTER_ADDR and PORT on each.
# Environment: AERIE (the binary; default: build/aerie of this checkout, else aerie), NNODES (1), NODE_RANK (0), PORT (29500).
set -euo pipefail

if [ $# -lt 2 ]; then
  sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
config="$1"
gpus="$2"
shift 2
case "$gpus" in ''|*[!0-9]*|0) echo "error: the number of GPUs must be a whole number from 1, not '$gpus'" >&2; exit 2 ;; esac

here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
aerie="${AERIE:-}"
if [ -z "$aerie" ]; then
  aerie="$here/build/aerie"
  [ -x "$aerie" ] || aerie=aerie
fi
nodes="${NNODES:-1}"
options=("trainer.devices=$gpus")
if [ "$nodes" != 1 ]; then
  options+=("trainer.num_nodes=$nodes")
  for name in NODE_RANK MASTER_ADDR; do
    [ -n "${!name:-}" ] || { echo "error: the variable $name must be set with several machines" >&2; exit 2; }
    export "${name?}"
  done
  export MASTER_PORT="${MASTER_PORT:-${PORT:-29500}}"
fi
# mm's two names for overrides cannot be mixed.
as=--cfg-options
for arg in "$@"; do case "$arg" in --options|--options=*) as=--options ;; esac; done
exec "$aerie" train "$config" "$@" "$as" "${options[@]}"
