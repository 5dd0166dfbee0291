#!/usr/bin/env bash
# Make the environment of another system, with the versions that it is compared in.
#
#   benchmarks/peers/make_environment.sh distdgl|graphbolt
#
# HOPPER_PYTHON names the interpreter (default python3.11, which both need). The environment is
# benchmarks/peers/environments/NAME; graphbolt's takes a download of some gigabytes, since that
# torch has no smaller build on PyPI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
name=${1:-}
if [[ ! -f requirements/$name.txt ]]; then
  echo "error: expected one of $(cd requirements && echo *.txt | sed 's/\.txt//g'), given '$name'" >&2
  exit 2
fi
venv=environments/$name
"${HOPPER_PYTHON:-python3.11}" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "requirements/$name.txt"
"$venv/bin/python" -c 'import dgl, torch; print("dgl", dgl.__version__, "torch", torch.__version__)'
touch "$venv/made"
