"""The manifest for Kubernetes: its objects, and its command."""

import re
from pathlib import Path
from typing import Any

import pytest

from hopper.cli.commands import build_parser
from hopper.config import make_config

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


@pytest.fixture(scope="module")
def template(objects) -> Any:
    """The template of the job's pods."""
    return objects["Job", "hopper"]["spec"]["template"]


def test_nothing_has_more_rights_than_it_needs(template):
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


def test_every_name_refers_to_an_object_of_the_manifest(objects, template):
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


def test_values_that_users_must_change_are_explained():
    text = (REPOSITORY / "docs" / "howto" / "launch.md").read_text()
    section = text.partition("## Kubernetes")[2].partition("\n## ")[0]
    explained = set(re.findall(r"`([^`]+)`", section.replace("```", "")))
    settings = re.findall("^(.*?)# CHANGE", MANIFEST.read_text(), re.M)
    words_of_lines = [set(re.findall(r"[\w./-]{4,}", text)) for text in settings if text.strip()]
    assert len(words_of_lines) > 8
    assert [line_words for line_words in words_of_lines if not line_words & explained] == []


def test_its_command_is_understood(template):
    """``tests/train/test_slurm_script.py`` trains by the same command on two nodes."""
    [container] = template["spec"]["containers"]
    python, *words = [*container["command"], *container["args"]]
    index = "$(JOB_COMPLETION_INDEX)"
    assert (python, words[:3]) == ("python", ["-m", "hopper.cli", "host"])
    options = build_parser().parse_args([word.replace(index, "1") for word in words[2:]])
    assert options.server == [1]
    config = make_config({"data": {"partitioned": "parts"}}, options.overrides)
    assert len(config.cluster.servers) == SERVERS
    assert config.cluster.tls_certificate
    assert config.cluster.token_file
