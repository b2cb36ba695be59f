#!/usr/bin/env bash
set -euo pipefail
cache="${AERIE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/aerie}"
case "${1:-}" in
  --print-torch) [ -n "${AERIE_TORCH:-}" ] && { echo "$AERIE_TORCH"; exit 0; }; echo "$cache/torch-2.11.0-cp311/torch" ;;
esac
