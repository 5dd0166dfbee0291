#!/usr/bin/env bash
# Make a virtual environment, or bring it up to date, with this checkout installed in it.
#
#   scripts/make_environment.sh DIR EXTRA[,EXTRA...]
#
# HOPPER_PYTHON names the interpreter; without it the first that will do is taken, from python3.11
# (the only one that DGL has a wheel for) on. Versions come from constraints.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=$1 extras=$2
read -r first end < <(
  sed -n 's/^requires-python = ">=3\.\([0-9]*\),<3\.\([0-9]*\)"$/\1 \2/p' pyproject.toml
)

# Says why an interpreter will not do, or nothing. Running it also sorts out names that only stand for
# an interpreter (shims).
refusal() {
  "$1" - "$first" "$end" 2>/dev/null <<'PYTHON' || echo "cannot be run"
import sys

first, end = int(sys.argv[1]), int(sys.argv[2])
here = sys.version_info
if not (3, first) <= here[:2] < (3, end):
    print("is Python %d.%d, expected 3.%d to 3.%d" % (here[0], here[1], first, end - 1))
else:
    try:
        import ensurepip, venv
    except ImportError:
        print("cannot make environments: apt install python3.%d-venv" % here[1])
PYTHON
}

find_python() {
  local minor candidate why refused="" candidates=()
  for ((minor = first; minor < end; minor++)); do
    candidates+=("python3.$minor")
  done
  candidates+=(python3)
  if [[ -n ${HOPPER_PYTHON:-} ]]; then
    candidates=("$HOPPER_PYTHON")
  fi
  for candidate in "${candidates[@]}"; do
    why=$(refusal "$candidate")
    if [[ -z $why ]]; then
      echo "$candidate"
      return
    fi
    refused+="; $candidate $why"
  done
  echo "error: ${refused:2}; HOPPER_PYTHON=/path/to/python names another one" >&2
  return 1
}

if [[ -x $venv/bin/python && -z $(refusal "$venv/bin/python") ]]; then
  here=$("$venv/bin/python" --version)
  if [[ -n ${HOPPER_PYTHON:-} && $here != "$("$HOPPER_PYTHON" --version 2>&1)" ]]; then
    echo "error: $venv has $here, not that of HOPPER_PYTHON=$HOPPER_PYTHON; remove it or name another" >&2
    exit 1
  fi
else
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
# Whoever looks on sees how far a download is; a log gets no bars.
[[ -t 1 ]] || export PIP_QUIET=1
export PIP_DISABLE_PIP_VERSION_CHECK=1
scripts/install_torch.sh "$venv/bin/python"
echo "installing this checkout with its extras $extras, and what they need, into $venv"
"$venv/bin/python" -m pip install -c constraints.txt -e ".[$extras]"
# pip leaves this to the first process that imports the checkout, or to each of them where Python is
# told to write no bytecode.
"$venv/bin/python" -m compileall -q hopper cache_server
echo "$made_from" >"$mark"
