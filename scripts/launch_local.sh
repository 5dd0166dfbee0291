#!/usr/bin/env bash
# What `hopper train` does on one machine, spelled out: one feature server per partition, then
# torchrun over all ranks. Whatever ends first, everything else is ended with it.
#
#   scripts/launch_local.sh CONFIG.toml [--section.key VALUE ...]
#
# The exit code is torchrun's, or 1 if a feature server was lost.
# PYTHON names the interpreter that Hopper is installed for (default: python).
set -euo pipefail

if (($# == 0)) || [[ $1 == -* ]]; then
  sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
python=${PYTHON:-python}
# Nothing is imported from the folder that this happens to be called in.
export PYTHONSAFEPATH=1

# 1. Ask the configuration what to start. A bad one ends here, before anything has started.
plan=$(
  "$python" - "$@" <<'PYTHON'
import sys
import time
from pathlib import Path

from hopper.config import load_config
from hopper.errors import HopperError
from hopper.partition import PartitionedGraph
from hopper.train.security import check_security, security_words

try:
    config = load_config(sys.argv[1], sys.argv[2:])
    check_security(config)
    servers = PartitionedGraph.open(config.data.partitioned).book.servers
except HopperError as error:
    sys.exit(f"error: {error}")
run_dir = Path(config.train.run_dir or time.strftime("runs/%Y%m%d-%H%M%S-local")).absolute()
print(servers, servers * config.cluster.ranks_per_server)
print(int(config.cluster.start_timeout_seconds))
print(Path(config.data.partitioned).absolute())
print(run_dir)
print(*security_words(config), sep="\n")
PYTHON
)
{
  read -r servers ranks
  read -r start_limit
  IFS= read -r partitioned
  IFS= read -r run_dir
  mapfile -t security
} <<<"$plan"
mkdir -p "$run_dir/servers"

# 2. However this script ends, the ranks go first and the servers after them. Only SIGKILL cannot be
#    caught: then the servers end with the script (--die-with-parent), the ranks on missing them.
trainer=
server_pids=()
# shellcheck disable=SC2329 # called by the trap, below
end_all() {
  trap '' INT TERM
  if [[ -n $trainer ]]; then
    kill -TERM "$trainer" 2>/dev/null || true
    wait "$trainer" || true
  fi
  if ((${#server_pids[@]})); then
    kill -TERM "${server_pids[@]}" 2>/dev/null || true
    wait "${server_pids[@]}" || true
  fi
}
trap end_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

lost_server() {
  echo "error: feature server $1 (pid ${server_pids[$1]}) ended; its output:" >&2
  cat "$run_dir/servers/$1.log" >&2
  exit 1
}

# 3. Feature servers: each takes a free port and writes it down once it serves.
for ((i = 0; i < servers; i++)); do
  rm -f "$run_dir/servers/$i.json"
  "$python" -m cache_server "$partitioned" --server "$i" --listen 127.0.0.1:0 \
    ${security[@]+"${security[@]}"} \
    --port-file "$run_dir/servers/$i.json" --die-with-parent "$$" >"$run_dir/servers/$i.log" 2>&1 &
  server_pids+=($!)
done
addresses=()
deadline=$((SECONDS + start_limit))
for ((i = 0; i < servers; i++)); do
  until [[ -e $run_dir/servers/$i.json ]]; do
    kill -0 "${server_pids[$i]}" 2>/dev/null || lost_server "$i"
    if ((SECONDS > deadline)); then
      echo "error: feature server $i: starting did not finish within $start_limit s" >&2
      exit 1
    fi
    sleep 0.05
  done
  addresses+=("$(sed -n 's/.*"address": \("[^"]*"\).*/\1/p' "$run_dir/servers/$i.json")")
done

# 4. Ranks. A thread that waits must not spin on a core that another needs.
cores=$(env -u OMP_NUM_THREADS nproc)
threads=$((cores / ranks > 0 ? cores / ranks : 1))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads}
if ((OMP_NUM_THREADS * ranks > cores)); then
  export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}
fi
# A rank that is stopped does not react to being told to end.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-2}
list="[$(IFS=, && echo "${addresses[*]}")]"
(
  # Ranks that meet on loopback listen nowhere else. torchrun's --standalone would: its store is open
  # to the network, and it unpickles what lies there.
  # If torchrun is killed, its ranks end too: they are told its process id, which is this one's.
  export HOPPER_DIE_WITH_PARENT=$BASHPID
  exec "$python" -m torch.distributed.run --rdzv-backend loopback --nproc-per-node "$ranks" \
    -m hopper.train "$@" \
    --cluster.servers "$list" --data.partitioned "$partitioned" --train.run_dir "$run_dir"
) &
trainer=$!

# 5. Wait for the ranks; a server that ends before them ends the run.
while kill -0 "$trainer" 2>/dev/null; do
  for ((i = 0; i < servers; i++)); do
    kill -0 "${server_pids[$i]}" 2>/dev/null || lost_server "$i"
  done
  sleep 0.2
done
code=0
wait "$trainer" || code=$?
trainer=
exit "$code"
