"""The manifest for Kubernetes: its objects, and that its commands train a run.

The tests start its processes with the manifest's own command lines. Only folders, host names and
ports are replaced by those of this machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hopper.train.results import EPOCHS_FILE
from tests.cache_server.test_security import issue
from tests.conftest import free_ports

yaml = pytest.importorskip("yaml")

REPOSITORY = Path(__file__).resolve().parents[2]
MANIFEST = REPOSITORY / "scripts" / "launch_kubernetes.yaml"
SERVERS = 2
Objects = dict[tuple[str, str], Any]


@pytest.fixture(scope="module")
def objects() -> Objects:
    """The objects of the manifest, by kind and name."""
    documents = list(yaml.safe_load_all(MANIFEST.read_text()))
    by_name = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    assert len(by_name) == len(documents)
    return by_name


def pod(objects: Objects, kind: str, name: str) -> Any:
    return objects[kind, name]["spec"]["template"]


def pods(objects: Objects) -> list[Any]:
    return [pod(objects, "Job", "hopper")]


def test_nothing_has_more_rights_than_it_needs(objects: Objects) -> None:
    for template in pods(objects):
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        [container] = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])


def test_every_name_refers_to_an_object_of_the_manifest(objects: Objects) -> None:
    for template in pods(objects):
        mounted = {mount["name"] for mount in template["spec"]["containers"][0]["volumeMounts"]}
        volumes = template["spec"]["volumes"]
        assert mounted == {volume["name"] for volume in volumes}
        for volume in volumes:
            for key, kind, name in (
                ("secret", "Secret", "secretName"),
                ("configMap", "ConfigMap", "name"),
                ("persistentVolumeClaim", "PersistentVolumeClaim", "claimName"),
            ):
                assert key not in volume or (kind, volume[key][name]) in objects
    [template] = pods(objects)
    assert template["metadata"]["labels"] == {"app": "hopper"}
    assert objects["Service", "hopper"]["spec"]["selector"] == {"app": "hopper"}
    assert objects["Service", "hopper"]["spec"]["clusterIP"] == "None"
    policy = objects["NetworkPolicy", "hopper"]["spec"]
    assert policy["podSelector"]["matchLabels"] == {"app": "hopper"}
    [rule] = policy["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"app": "hopper"}}}]
    job = objects["Job", "hopper"]["spec"]
    assert job["completions"] == job["parallelism"] == SERVERS
    assert template["spec"]["subdomain"] == "hopper"


def test_values_that_users_must_change_are_explained() -> None:
    text = (REPOSITORY / "docs" / "howto" / "launch.md").read_text()
    section = text.partition("## Kubernetes")[2].partition("\n## ")[0]
    explained = set(re.findall(r"`([^`]+)`", section.replace("```", "")))
    marked_lines = [line for line in MANIFEST.read_text().splitlines() if "# CHANGE" in line]
    settings = [line.partition("# CHANGE")[0] for line in marked_lines]
    words_of_lines = [
        set(re.findall(r"[\w./-]{4,}", setting)) for setting in settings if setting.strip()
    ]
    assert len(words_of_lines) > 8
    assert [line_words for line_words in words_of_lines if not line_words & explained] == []


@pytest.fixture
def localize(tmp_path: Path, partitioned: Path) -> Callable[[str, int], str]:
    """Replaces folders, names and ports of a pod by those of this machine."""
    issue(tmp_path, "own")
    security = tmp_path / "security"
    security.mkdir()
    for name, issued_name in (
        ("ca.pem", "own-ca.pem"),
        ("tls.pem", "own-certificate.pem"),
        ("tls.key", "own-key.pem"),
    ):
        shutil.copy(tmp_path / issued_name, security / name)
    (security / "token").write_text("nobody-else-knows-this-0123456789")
    (security / "token").chmod(0o600)
    first = free_ports(SERVERS + 1)
    meeting, *ports = (str(port) for port in range(first, first + SERVERS + 1))
    replacements = {
        "/security/": f"{security}/",
        "/data/parts": str(tmp_path / "kubernetes-parts"),
        "hopper-0.hopper:30000": f"127.0.0.1:{meeting}",
    }
    (tmp_path / "kubernetes-parts").symlink_to(partitioned)
    for index, port in enumerate(ports):
        replacements[f"hopper-{index}.hopper:20000"] = f"localhost:{port}"

    def replace(word: str, index: int) -> str:
        for old, new in replacements.items():
            word = word.replace(old, new)
        return word.replace("$(JOB_COMPLETION_INDEX)", str(index))

    return replace


@pytest.fixture
def start(localize: Any) -> Iterator[Any]:
    """Starts a container's command as a process of this machine."""
    running: list[subprocess.Popen[str]] = []

    def begin(words: list[str], index: int, config: Path | None = None) -> subprocess.Popen[str]:
        command = [localize(word, index) for word in words]
        assert command[0] == "python"
        command = [str(config) if word == "/config/config.toml" else word for word in command]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        running.append(
            subprocess.Popen(
                [sys.executable, *command[1:]],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return running[-1]

    yield begin
    for process in running:
        process.terminate()
    for process in running:
        process.wait(60.0)
        assert process.stdout is not None
        process.stdout.close()


def command_of(template: Any) -> list[str]:
    [container] = template["spec"]["containers"]
    return [*container["command"], *container["args"]]


def test_its_commands_train_the_same_run(
    objects: Objects, start: Any, runs: Any, reference: Any
) -> None:
    [template] = pods(objects)
    config = runs.config("on-kubernetes")
    trainers = [start(command_of(template), index, config) for index in range(SERVERS)]
    for trainer in trainers:
        printed, _ = trainer.communicate(timeout=200.0)
        assert trainer.returncode == 0, printed
    run_dir = config.with_suffix("")
    lines = (run_dir / EPOCHS_FILE).read_text().splitlines()
    losses = [json.loads(line)["iteration_losses"] for line in lines]
    assert losses == reference.losses()
