#!/usr/bin/env bash
# Build the wheel, unless it is there, install it into an empty environment without DGL and Triton, and use it there:
# import every module, make and divide a graph, train on two servers, and run the tests of what asks
# whether DGL or Triton is there: the choice of kernels and of METIS, and imports from DGL.
#
#   scripts/test_wheel.sh PYTHON [DIST]   (an interpreter with the `dev` extra; a folder with the wheel,
#                                          where it has been built)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
checkout=$PWD python=$1 dist=${2:+$(cd "$2" && pwd)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf -- '-- %s\n' "$*"; }

if [[ -z $dist ]]; then
  say "build"
  dist=$work/dist
  # By way of a source distribution, so that nothing old in build/ slips into the wheel.
  "$python" -m build --no-isolation --outdir "$dist" . >"$work/build.log" 2>&1 ||
    { cat "$work/build.log" >&2 && exit 1; }
fi

say "metadata and content"
"$python" scripts/check_distribution.py "$dist"

say "install into an empty environment"
"$python" -m venv "$work/venv"
export PIP_QUIET=1 PIP_DISABLE_PIP_VERSION_CHECK=1
scripts/install_torch.sh "$work/venv/bin/python"
"$work/venv/bin/python" -m pip install -c constraints.txt \
  "$dist"/*.whl pytest pytest-timeout hypothesis
# torch's build for CUDA brings it.
"$work/venv/bin/python" -m pip uninstall --yes triton

# Away from the checkout, so that only what was installed can be imported.
cp -r tests docs examples pyproject.toml "$work/"
cd "$work"
PATH=$work/venv/bin:$PATH

say "import every module"
python - "$checkout" <<'PYTHON'
import importlib
import importlib.util
import pkgutil
import sys
from pathlib import Path

import cache_server
import hopper

for absent in ("dgl", "triton"):
    assert importlib.util.find_spec(absent) is None, f"the environment was to be without {absent}"
NEED_TRITON = {"hopper.ops.triton_kernels", "hopper.ops.triton_programs"}
count = 0
for package in (cache_server, hopper):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        # What is for those who have PyG needs it.
        if module.name in NEED_TRITON or module.name.startswith("hopper.pyg"):
            continue
        loaded = importlib.import_module(module.name)
        assert not Path(loaded.__file__).is_relative_to(sys.argv[1]), loaded
        count += 1
print(f"{count} modules")
PYTHON

say "a graph, its partitions, a training run"
hopper dataset make arxiv-like --scale 0.01 --out graph
hopper partition graph --servers 2 --method metis --out parts --locality-roots 100
cat >train.toml <<'TOML'
[data]
partitioned = "parts"
[model]
layers = 2
[sampler]
fanouts = [5, 5]
[train]
batch_size = 128
epochs = 1
run_dir = "run"
TOML
hopper train train.toml
test -s run/summary.json
hopper predict run --out labels
compgen -G 'labels/*.parquet' >"$work/list"

say "the papers' experiments, which only a checkout has"
if hopper bench paper 2>refused; then
  echo "hopper bench paper ran" >&2 && exit 1
fi
grep -q 'is now `python -m benchmarks.paper NAME` in a checkout' refused

say "tests without DGL"
# All else is the same code with and without it.
python -m pytest tests/ops/test_selection.py tests/graph/test_import_libraries.py \
  tests/partition/test_{partitioners,cli,memory}.py
