#!/usr/bin/env bash
# All that has to be measured on a GPU, on one, with nothing to be downloaded:
#
#   benchmarks/gpu.sh OUT            # needs an environment with the extra gpu
#   benchmarks/gpu.sh OUT cpu        # a dry run of the same, small
#
# Results are in OUT/summary.csv and below OUT. What was completed is not run again.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:?benchmarks/gpu.sh OUT [cpu]}")
device=${2:-cuda}
python=${PYTHON:-.venv/bin/python}
hopper=("$python" -m hopper.cli)
mkdir -p "$out/done" "$out/data"

# graphs, their sizes, rounds and batches
if [[ $device == cuda ]]; then
  presets=(mag-like:0.2 am-like:1 bgs-like:1) uk=0.2 rounds=5 batches=8 epochs=3
else
  presets=(mag-like:0.002 am-like:0.005 bgs-like:0.01) uk=0.01 rounds=1 batches=1 epochs=2
fi

step() { # NAME COMMAND...: runs a command whose output goes to OUT/NAME.log
  local name=$1
  shift
  [[ -e $out/done/$name ]] && return
  echo "$(date +%T) $name"
  if "$@" >"$out/$name.log" 2>&1; then
    touch "$out/done/$name"
  else
    echo "$name ended with $?: see $out/$name.log" >&2
  fi
}

divide() { # PRESET SCALE SERVERS METHOD
  "${hopper[@]}" dataset make "$1" --scale "$2" --out "$out/data/$1"
  "${hopper[@]}" partition "$out/data/$1" --servers "$3" --method "$4" --locality-roots 0 \
    --out "$out/data/$1-parts"
}

compare() { # NAME PARTS MODEL ENGINES FANOUTS KEYS...: engines against the first of them
  local name=$1 parts=$2 model=$3 engines=$4 fanouts=$5
  shift 5
  printf '[sampler]\nfanouts = %s\n' "$fanouts" >"$out/$name.toml"
  "${hopper[@]}" bench "$out/$name.toml" --out "$out/$name" \
    --engines "$engines" --rounds "$rounds" --data.partitioned "$parts" --model.name "$model" \
    --model.layers 2 --model.hidden 64 --train.batch_size 512 --train.epochs "$epochs" \
    --train.iterations_per_epoch 8 --train.device "$device" --cluster.share_gpus true "$@"
}

if [[ $device == cuda ]]; then
  step tests "$python" -m pytest tests/ops tests/models tests/hetero tests/test_device_copies.py \
    tests/micrograph/test_array_sampler.py tests/features/test_row_cache.py \
    tests/engines/test_processes.py
fi
for preset in "${presets[@]}"; do
  name=${preset%:*}
  step "make-$name" divide "$name" "${preset#*:}" 2 metis
  for script in merged_relations hifuse_ablation; do
    step "$script-$name" "$python" -m "benchmarks.$script" --device "$device" --rounds "$rounds" \
      --batches "$batches" --out "$out" "$out/data/$name-parts"
  done
done
step make-uk-like divide uk-like "$uk" 4 metis
step engines compare engines "$out/data/uk-like-parts" sage \
  model_centric,hop,zero_hop,cooperative "[10, 10]"
memory=$([[ $device == cuda ]] && echo device || echo host)
cached=model_centric:cache.size=10%:cache.memory=$memory:cache.policy
step caches compare caches "$out/data/mag-like-parts" rgcn \
  "model_centric,$cached=lru,$cached=hotness,$cached=hotness+penalty,$cached=benefit" "[10, 10]"
step make-by-relation "${hopper[@]}" partition "$out/data/mag-like" --servers 2 --method meta \
  --out "$out/data/mag-like-by-relation"
cached=raf:cache.size=10%:cache.memory=$memory:cache.policy
step raf compare raf "$out/data/mag-like-by-relation" rgcn \
  "raf,$cached=lru,$cached=hotness,$cached=hotness+penalty,$cached=benefit" "[10, 10]" \
  --learnable.storage host
ls "$out/done"
