"""What the doctor says of certificates, keys and tokens."""

import datetime
from pathlib import Path

import pytest
import trustme

from hopper.doctor.certificates import authorities_of, read_validity
from tests.doctor.conftest import find, wrongs

DAY = datetime.timedelta(days=1)


def issue(folder: Path, days: float, name: str = "127.0.0.1") -> list[str]:
    """Write certificates into a folder; the machine's own is valid for so many days. Returns the
    words of the command line that name them."""
    now = datetime.datetime.now(datetime.UTC)
    authority = trustme.CA()
    certificate = authority.issue_cert(name, not_before=now - 60 * DAY, not_after=now + days * DAY)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "certificate.pem")
    (folder / "key.pem").chmod(0o600)
    (folder / "token").write_text("nobody-else-knows-this-0123456789")
    (folder / "token").chmod(0o600)
    files = {f"tls_{part}": f"{part}.pem" for part in ("ca", "certificate", "key")}
    files["token_file"] = "token"
    return [
        word for key, file in files.items() for word in (f"--cluster.{key}", f"{folder}/{file}")
    ]


def test_dates_are_read_as_ssl_reads_them(tmp_path):
    issue(tmp_path, 100.5)
    assert int(read_validity(f"{tmp_path}/certificate.pem", f"{tmp_path}/key.pem").days) == 100
    assert [authority.days > 1000 for authority in authorities_of(f"{tmp_path}/ca.pem")] == [True]


def test_valid_certificates_and_tokens_are_fine(look, tmp_path):
    findings = look(*issue(tmp_path, 100.5))
    assert wrongs(findings) == []
    assert "100 days from now" in find(findings, "cluster.tls_certificate").found
    for key in ("tls_ca", "tls_key", "token_file"):
        assert find(findings, f"cluster.{key}").state == "fine"


def test_certificates_that_have_ended_or_end_soon_are_told(look, tmp_path):
    [line] = wrongs(look(*issue(tmp_path, -3.2)))
    assert f"cluster.tls_certificate: {tmp_path}/certificate.pem: not vouched for by " in line
    (soon := tmp_path / "soon").mkdir()
    finding = find(look(*issue(soon, 9.5)), "cluster.tls_certificate")
    assert finding.state == "warning"
    assert " days from now" in finding.found
    assert "issued anew" in finding.advice


def test_a_certificate_of_another_name_or_authority_is_wrong(look, tmp_path):
    """Servers that a run starts on this machine are reached under 127.0.0.1."""
    words = issue(tmp_path, 100, "node0")
    finding = find(look(*words), "cluster.tls_certificate")
    assert finding.state == "wrong"
    assert "127.0.0.1" in finding.found
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    [line] = wrongs(look(*words))
    assert f"cluster.tls_certificate: {tmp_path}/certificate.pem: not vouched for by " in line


def test_certificates_and_keys_that_cannot_be_used_are_named(look, tmp_path):
    words = issue(tmp_path, 100)
    trustme.CA().issue_cert("127.0.0.1").private_key_pem.write_to_path(tmp_path / "key.pem")
    assert len(lines := wrongs(look(*words))) == 1
    assert "cluster.tls_certificate, tls_key: " in lines[0]
    (tmp_path / "ca.pem").unlink()
    assert "cluster.tls_ca: " in wrongs(look(*words))[0]


@pytest.mark.parametrize("mode", [0o644, 0o640])
def test_a_token_that_others_can_read_is_a_warning(look, tmp_path, mode):
    words = issue(tmp_path, 100)
    (tmp_path / "token").chmod(mode)
    finding = find(look(*words), "cluster.token_file")
    assert (finding.state, finding.advice) == ("warning", f"chmod 600 {tmp_path}/token")


def test_servers_elsewhere_want_certificates(look):
    # Of a network for documents, where nobody answers.
    elsewhere = ("--cluster.servers", '["192.0.2.7:1", "192.0.2.8:1"]')
    findings = look(*elsewhere, limit=0.5)
    assert "insecure: talking to 192.0.2.7:1" in find(findings, "certificates and token").found
    assert find(findings, "server 0").state == "wrong"
    insecure = look(*elsewhere, "--cluster.insecure", "true", limit=0.5)
    assert find(insecure, "certificates and token").state == "warning"
    # Ranks of the other server are not this machine's.
    assert "1 rank here (cluster.ranks_per_server)" in find(insecure, "threads").found
