#!/usr/bin/env bash
# Test with the lowest versions of dependencies that pyproject.toml allows, or with the newest ones.
#
#   scripts/test_versions.sh lowest|newest DIR
#
# DIR is a new virtual environment. HOPPER_PYTHON names the interpreter to make it with (the lowest
# versions need Python 3.11), HOPPER_TORCH another version of torch, for PyTorch's build for CPUs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
which=$1 venv=$2
"${HOPPER_PYTHON:-python3.11}" -m venv "$venv"
versions=$(mktemp)
trap 'rm -f "$versions"' EXIT
if [[ $which == lowest ]]; then
  "$venv/bin/python" - >"$versions" <<'PYTHON'
import re
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
for needed in project["dependencies"]:
    name, version = re.fullmatch(r"(\S+)>=(\S+)", needed).groups()
    print(f"{name}=={version}")
PYTHON
fi
if [[ -n ${HOPPER_TORCH:-} ]]; then
  sed -i '/^torch==/d' "$versions"
  echo "torch==$HOPPER_TORCH" >>"$versions"
fi
scripts/install_torch.sh "$venv/bin/python" "$versions"
"$venv/bin/python" -m pip install -q -c "$versions" -e ".[databases]" \
  pytest pytest-timeout pytest-xdist hypothesis grpcio-health-checking jsonschema pandas pyyaml trustme
"$venv/bin/python" -m pip list
# Each dependency is used there: arrays, messages, tables, kernels, partitions and whole runs. Types are
# checked with the versions of constraints.txt only, whose annotations they need.
"$venv/bin/python" -m pytest -n 2 --dist loadfile \
  tests/cache_server tests/features tests/graph tests/models tests/partition \
  tests/engines/test_conformance.py tests/micrograph tests/test_public_api.py \
  -k "not mypy_strict and not type_checkers"
