"""Real servers of data: object storage and a database."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

POSTGRES = shutil.which("postgres"), shutil.which("initdb")
"""the programs of a server"""


@contextmanager
def s3_server() -> Iterator[None]:
    """Start an S3 server, which variables of the environment lead to."""
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "shop")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "paint")
        yield
    server.stop()


@contextmanager
def postgres_database(free_port: Callable[[], int]) -> Iterator[str]:
    """Start a Postgres server; yield the address of its database, with a password."""
    if None in POSTGRES:
        pytest.skip("Postgres is not installed")
    adbc = pytest.importorskip("adbc_driver_postgresql.dbapi")
    server, initdb = map(str, POSTGRES)
    # Its programs refuse to run as root, and pytest's folders are closed to other users.
    as_user: dict[str, Any] = {"user": "postgres"} if os.getuid() == 0 else {}
    folder = tempfile.mkdtemp(prefix="postgres-")
    if as_user:
        shutil.chown(folder, "postgres")
    password = Path(folder, "password")
    password.write_text("paint")
    password.chmod(0o644)
    words = [initdb, "-D", f"{folder}/data", "-A", "scram-sha-256", "-U", "shop", "--no-sync"]
    subprocess.run([*words, f"--pwfile={password}"], check=True, capture_output=True, **as_user)
    process, url, deadline = None, "", time.monotonic() + 60
    with Path(folder, "log").open("wb") as log:
        while True:
            # A server ends at once if another process has taken its port meanwhile.
            if process is None or process.poll() is not None:
                port = str(free_port())
                words = [server, "-D", f"{folder}/data", "-p", port, "-h", "127.0.0.1"]
                process = subprocess.Popen([*words, "-k", folder], stderr=log, **as_user)
                url = f"postgresql://shop:paint@127.0.0.1:{port}/postgres"
            try:
                adbc.connect(url).close()
                break
            except Exception:
                if time.monotonic() > deadline:
                    process.kill()
                    pytest.fail(Path(folder, "log").read_text())
                time.sleep(0.1)
        yield url
        process.terminate()
        process.wait()
    shutil.rmtree(folder)
