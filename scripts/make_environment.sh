#!/usr/bin/env bash
# Make a virtual environment, or bring it up to date, with this checkout installed in it.
#
#   scripts/make_environment.sh DIR EXTRA[,EXTRA...]
#
# HOPPER_PYTHON names the interpreter; without it the first of python3.11 (the reference), python3.12
# (works, without DGL) and python3 that will do is taken. Versions come from constraints.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=$1 extras=$2

will_do() {
  # Running it also sorts out names that only stand for an interpreter (shims).
  "$1" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null
}

find_python() {
  local candidate
  for candidate in ${HOPPER_PYTHON:-python3.11 python3.12 python3}; do
    if will_do "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  echo "error: Python 3.11 (or 3.12, without DGL) is needed and was not found; name one as" \
    "HOPPER_PYTHON=/path/to/python3.11" >&2
  return 1
}

if ! [[ -x $venv/bin/python ]] || ! will_do "$venv/bin/python"; then
  python=$(find_python)
  echo "making $venv with $("$python" --version)"
  "$python" -m venv --clear "$venv"
fi

# What the environment was made from; nothing is done when that is what it was made from before.
made_from=$(cat pyproject.toml constraints.txt <(pwd) | cksum)
mark=$venv/.hopper-$extras
if [[ -e $mark && $(<"$mark") == "$made_from" ]]; then
  exit 0
fi
echo "installing hopper-gnn[$extras] and what it needs into $venv (some minutes the first time)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  -c constraints.txt -e ".[$extras]"
# pip leaves this to the first process that imports the checkout, or to each of them where Python is
# told to write no bytecode.
"$venv/bin/python" -m compileall -q hopper cache_server
echo "$made_from" >"$mark"
