#!/usr/bin/env bash
# The same as `python -m serve start`.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 -m serve start "$@"
