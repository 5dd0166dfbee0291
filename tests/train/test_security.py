"""Runs whose feature servers and ranks use certificates and a token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopper.config import make_config
from hopper.errors import ConfigError
from hopper.train.security import check_security
from tests.cache_server.test_security import issue

TOKEN = "nobody-else-knows-this-0123456789"


@pytest.fixture
def cluster_keys(tmp_path: Path) -> dict[str, str]:
    """Keys of ``[cluster]`` that name certificates and a token."""
    issue(tmp_path, "own")
    (tmp_path / "token").write_text(TOKEN)
    files = {f"tls_{name}": f"own-{name}.pem" for name in ("ca", "certificate", "key")}
    return {key: str(tmp_path / file) for key, file in (files | {"token_file": "token"}).items()}


def test_a_secured_run_trains_the_same_and_keeps_its_token_secret(
    reference: Any, runs: Any, cluster_keys: dict[str, str]
) -> None:
    words = [word for key, value in cluster_keys.items() for word in (f"--cluster.{key}", value)]
    run = runs.train("secured", *words)
    run.await_epochs(1)
    visible_texts = [
        " ".join([*process.cmdline(), *process.environ().values()]) for process in run.members()
    ]
    assert len(visible_texts) >= 4
    assert run.finish() == 0, run.stdout + run.stderr
    run.assert_nothing_remains()
    assert run.losses() == reference.losses()
    assert not any(TOKEN in text for text in visible_texts)
    files = [path for path in run.run_dir.rglob("*") if path.is_file()]
    assert files
    assert not any(TOKEN.encode() in file.read_bytes() for file in files)
    assert TOKEN not in run.stdout + run.stderr


def test_nothing_starts_with_files_that_cannot_be_used(
    runs: Any, cluster_keys: dict[str, str]
) -> None:
    Path(cluster_keys["tls_key"]).write_text("")
    words = [word for key, value in cluster_keys.items() for word in (f"--cluster.{key}", value)]
    run = runs.try_to_train("unusable", *words)
    assert run.code == 1
    assert run.stderr.startswith("error: cluster.tls_certificate, tls_key: ")
    assert run.stderr.count("\n") == 1


def test_servers_on_other_machines_need_certificates() -> None:
    values: dict[str, Any] = {"data": {"partitioned": "parts"}}
    cluster = {"servers": ["127.0.0.1:1", "192.0.2.7:1"]}
    with pytest.raises(ConfigError, match=r"^cluster\.insecure: talking to 192\.0\.2\.7:1"):
        check_security(make_config(values | {"cluster": cluster}))
    check_security(make_config(values | {"cluster": {**cluster, "insecure": True}}))
