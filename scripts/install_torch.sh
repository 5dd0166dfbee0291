#!/usr/bin/env bash
# Install torch, of the version in CONSTRAINTS (default constraints.txt), unless it is there: PyTorch's
# build for CPUs, or that for CUDA where there is an NVIDIA GPU. Says what it takes before the download
# begins.
#
#   scripts/install_torch.sh PYTHON [CONSTRAINTS]   (PYTHON: that of a virtual environment)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$1 index=https://download.pytorch.org/whl/cpu
constraints=${2:-constraints.txt}
version=$(sed -n 's/^torch==//p' "$constraints")

here=$("$python" -c 'from importlib.metadata import version as v; print(v("torch"))' 2>/dev/null || true)
if [[ -n $here && $here == "$version"* ]]; then
  exit 0
fi
# Sizes of the wheels for Linux on x86-64, and of what they install.
cuda="about 2.7 GB to download and 4.8 GB on disk"
options=()
if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
  echo "installing torch $version for CUDA, since there is a GPU: $cuda"
elif timeout 10 "$python" -c 'import sys, urllib.request as web; web.urlopen(sys.argv[1])' \
  "$index/torch/" 2>/dev/null; then
  echo "installing torch $version for CPUs: about 0.2 GB to download and 0.8 GB on disk"
  options=(--extra-index-url "$index")
else
  echo "installing torch $version. $index cannot be reached, so pip takes what it finds elsewhere." \
    "If that is the build for CUDA: $cuda"
fi
"$python" -m pip install -c "$constraints" "${options[@]}" torch
