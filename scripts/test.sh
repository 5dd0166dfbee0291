#!/usr/bin/env bash
# Everything that has to hold: format, lint, imports, types, the whole test suite, with DGL on Python 3.11, and
# the wheel in an empty environment without DGL.
#
#   ./scripts/test.sh
#
# HOPPER_VENV names another virtual environment than .venv, HOPPER_PYTHON the interpreter to make it
# with. Exits with 0 only if every step passed; a step that fails does not keep the next from running.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${HOPPER_VENV:-.venv}
scripts/make_environment.sh "$venv" dev
bin=$(cd "$venv/bin" && pwd)
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# numba knows a kernel that it has compiled by the file of the kernel alone, not by what it calls.
kernels=$venv/.hopper-kernels
if [[ ! -e $kernels || -n $(find hopper cache_server -name '*.py' -newer "$kernels" -print -quit) ]]; then
  find hopper cache_server -name '*.nb[ic]' -delete
  touch "$kernels"
fi

# Some images ask Python not to keep bytecode. Hundreds of processes would compile the project anew.
unset PYTHONDONTWRITEBYTECODE

passed=() failed=()
step() {
  local name=$1 start=$SECONDS
  shift
  printf '\n== %s: %s\n' "$name" "$*"
  if "$@"; then
    passed+=("$name")
  else
    failed+=("$name")
    echo "-- $name FAILED" >&2
  fi
  echo "-- $name: $((SECONDS - start)) s"
}

check_types() {
  # mypy has one core. The other one rewrites the tests' assertions meanwhile, which pytest keeps as
  # bytecode; otherwise each of its workers would do so.
  "$bin/python" -m pytest --collect-only >/dev/null 2>&1 &
  local collection=$! code=0
  "$bin/mypy" || code=$?
  wait "$collection" || true
  return "$code"
}

run_tests() {
  # By file: what the tests of a file share is made once. Half as many workers again as there are
  # cores, because tests also wait for sockets and processes.
  local workers=$((($(nproc) * 3 + 1) / 2))
  "$bin/python" -m pytest -n "$((workers < 6 ? workers : 6))" --dist loadfile --no-loadscope-reorder |
    tee "$log"
}

step format "$bin/ruff" format --check .
step lint "$bin/ruff" check .
step imports "$bin/lint-imports" --no-cache
step types check_types
step tests run_tests
step wheel scripts/test_wheel.sh "$bin/python"

printf '\nsteps: %s passed' "${#passed[@]}"
((${#failed[@]} == 0)) || printf ', %s failed: %s' "${#failed[@]}" "${failed[*]}"
printf '\n'
# pytest's own last line.
tail -n 1 "$log"
((${#failed[@]} == 0))
