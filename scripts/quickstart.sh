#!/usr/bin/env bash
# From a fresh checkout to predictions by name and a comparison of four engines: installs Hopper into
# .venv, trains on WordNet, then makes a graph and trains on it with each engine in turn. All runs have
# 4 servers and 4 ranks on this machine.
#
#   ./scripts/quickstart.sh
#
# HOPPER_VENV names another virtual environment, HOPPER_PYTHON the interpreter to make it with.
# May be run again: its folders below runs/ are made anew.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${HOPPER_VENV:-.venv}
wordnet=runs/wordnet
data=runs/quickstart-data
out=runs/quickstart

scripts/make_environment.sh "$venv" dgl
hopper=$venv/bin/hopper
begun=$SECONDS
rm -rf "$wordnet" "$data" "$out"

say() { printf '\n== %s\n' "$*"; }

say "a real graph from its tables: WordNet, 117,659 sets of synonyms (examples/wordnet)"
PYTHONPATH=examples/wordnet "$hopper" dataset import sql examples/wordnet/graph.toml \
  --out "$wordnet/graph" --add-reverse all --split random:0.6:0.2 | tail -n 3

say "divided over 4 servers"
"$hopper" partition "$wordnet/graph" --servers 4 --method stream --locality-roots 0 \
  --out "$wordnet/parts" | tail -n 1

say "trained: which of 26 topics is a noun about?"
echo "the first epoch also compiles kernels, once in this checkout"
"$hopper" train examples/wordnet/train.toml

say "what it says of nouns that it was not trained on"
"$hopper" predict "$wordnet/run" --out "$wordnet/labels"
"$venv/bin/python" examples/wordnet/look_up.py "$wordnet" bank spring python

say "a graph to compare engines on: web-like, 20,000 nodes with 600 features each, over 4 servers"
"$hopper" dataset make uk-like --scale 0.02 --out "$data/graph"
"$hopper" partition "$data/graph" --servers 4 --method metis --out "$data/parts" \
  --locality-roots 100 | tail -n 2

say "four engines, the same roots and draws, gradients compared, in timed rounds"
echo "on hosts that are network namespaces, with links of 1 Gbit/s, if this machine allows them"
"$hopper" bench examples/quickstart.toml --engines model_centric,hop,zero_hop,cooperative \
  --rounds 3 --emulate 4 --out "$out"

say "done in $((SECONDS - begun)) s after installation"
echo "table: above; numbers: $out/results.json; picture:" "$out"/*.png
