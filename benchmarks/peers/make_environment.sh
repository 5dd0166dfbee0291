#!/usr/bin/env bash
# Make the environment of another system, with the versions that it is compared in.
#
#   benchmarks/peers/make_environment.sh distdgl|graphbolt|pykeen
#
# HOPPER_PYTHON names the interpreter (default python3.11, which both of DGL's need). The environment is
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
"$venv/bin/python" -c 'import sys, torch; __import__(sys.argv[1]); print(*sys.argv[1:], torch.__version__)' \
  $(sed -n 's/^\([a-z]*\)==\(.*\)/\1 \2/p' "requirements/$name.txt" | head -1) torch
touch "$venv/made"
