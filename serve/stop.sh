#!/usr/bin/env bash
# The same as `python -m serve stop`.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 -m serve stop "$@"
