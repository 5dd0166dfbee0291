#!/usr/bin/env bash
# From a fresh checkout to a comparison of four engines: installs Hopper into .venv, makes a graph,
# divides it over 4 servers and trains on 4 ranks on this machine, each engine in turn.
#
#   ./scripts/quickstart.sh
#
# HOPPER_VENV names another virtual environment, HOPPER_PYTHON the interpreter to make it with.
# May be run again: its folders below runs/ are made anew.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${HOPPER_VENV:-.venv}
data=runs/quickstart-data
out=runs/quickstart

scripts/make_environment.sh "$venv" dgl
hopper=$venv/bin/hopper
begun=$SECONDS
rm -rf "$data" "$out"

say() { printf '\n== %s\n' "$*"; }

say "a graph: web-like, 20,000 nodes with 600 features each"
"$hopper" dataset make uk-like --scale 0.02 --out "$data/graph"

say "divided over 4 servers"
"$hopper" partition "$data/graph" --servers 4 --method metis --out "$data/parts" \
  --locality-roots 500

say "four engines, the same roots and draws, gradients compared, in timed rounds"
"$hopper" bench examples/quickstart.toml --engines model_centric,hop,zero_hop,cooperative \
  --rounds 3 --out "$out"

say "done in $((SECONDS - begun)) s after installation"
echo "table: above; numbers: $out/results.json; picture:" "$out"/*.png
