"""One emulated host of DistDGL: its graph server and its trainer.

``python distdgl_host.py JOB.json --host I``, started inside host I in a mount namespace of its own:
DistDGL's shared-memory names are the same on every host, so each gets a /dev/shm of its own. Ends
with the trainer's exit code; the server is ended with it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TRAINER = Path(__file__).with_name("distdgl_trainer.py")
MEETING_PORT = 29600


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    parser.add_argument("--host", type=int, required=True)
    options = parser.parse_args()
    job = json.loads(options.job.read_text())
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
    server = subprocess.Popen(
        [sys.executable, str(TRAINER), str(options.job)],
        env=environment(job) | {"DGL_ROLE": "server", "DGL_SERVER_ID": str(options.host)},
    )
    trainer = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "1",
            "--nnodes",
            str(job["hosts"]),
            "--node-rank",
            str(options.host),
            "--master-addr",
            job["addresses"][0],
            "--master-port",
            str(MEETING_PORT),
            str(TRAINER),
            str(options.job),
        ],
        env=environment(job)
        | {"DGL_DIST_MODE": "distributed", "DGL_ROLE": "client", "DGL_GROUP_ID": "0"},
    )
    try:
        return trainer.wait(job["limit_seconds"])
    finally:
        for process in (trainer, server):
            if process.poll() is None:
                process.kill()
            process.wait()


def environment(job: dict[str, Any]) -> dict[str, str]:
    """Return the environment variables that DistDGL reads, in servers and trainers alike."""
    return dict(os.environ) | {
        "DGL_NUM_SAMPLER": "0",
        "DGL_NUM_CLIENT": str(job["hosts"]),
        "DGL_CONF_PATH": job["partitioned"],
        "DGL_IP_CONFIG": job["ip_config"],
        "DGL_NUM_SERVER": "1",
        "DGL_GRAPH_FORMAT": "csc",
        "DGL_KEEP_ALIVE": "0",
        "OMP_NUM_THREADS": str(job["threads"]),
        "OMP_WAIT_POLICY": "PASSIVE",
        "GLOO_SOCKET_IFNAME": job["interface"],
        # Otherwise its servers spend much of their time returning memory to the system.
        "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
        "MALLOC_TOP_PAD_": str(64 << 20),
    }


if __name__ == "__main__":
    sys.exit(main())
