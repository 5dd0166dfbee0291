"""With TLS, mutual TLS and tokens, only clients of this cluster get rows."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from cache_server.client import FeatureClient
from cache_server.errors import ListenError, SecurityError, ServerFault, ServerUnavailable
from cache_server.security import Security, Token
from cache_server.wire import CHECK, DESCRIBE, FETCH_ROWS, SAMPLE_NEIGHBORS
from tests.cache_server.conftest import fetch

TOKEN = "of-this-cluster-0123456789"
OTHER = "of-another-cluster-0123456"


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A folder with certificates, keys and tokens of this cluster and of another."""
    folder = tmp_path_factory.mktemp("certificates")
    for name, token in (("own", TOKEN), ("other", OTHER)):
        issue(folder, name)
        (folder / f"{name}-token").write_text(f"{token}\n")
        (folder / f"{name}-token").chmod(0o600)
    both = b"".join((folder / f"{name}-ca.pem").read_bytes() for name in ("own", "other"))
    (folder / "both-ca.pem").write_bytes(both)
    return folder


def issue(
    folder: Path,
    name: str,
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost"),
    **validity: datetime,
) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert(*hosts, **validity)
    authority.cert_pem.write_to_path(folder / f"{name}-ca.pem")
    certificate.private_key_pem.write_to_path(folder / f"{name}-key.pem")
    (folder / f"{name}-key.pem").chmod(0o600)
    for number, blob in enumerate(certificate.cert_chain_pems):
        blob.write_to_path(folder / f"{name}-certificate.pem", append=number > 0)


def secure(folder: Path, pair: str = "", ca: str = "", token: str = "") -> Security:
    """Return the security of a certificate and its key, of authorities, and of a token."""
    fields = {f"tls_{file}": f"{pair}-{file}.pem" for file in ("certificate", "key") if pair}
    fields |= {"tls_ca": f"{ca}-ca.pem"} if ca else {}
    fields |= {"token_file": f"{token}-token"} if token else {}
    return Security(**{key: str(folder / file) for key, file in fields.items()})


def fetch_with(address: str, security: Security, limit: float = 10.0) -> None:
    with FeatureClient([address], deadline=limit, security=security) as client:
        fetch(client, [3, 0, 39, 3])


def test_clients_with_token_and_certificates_get_rows_and_no_others(files, serve):
    plain = secure(files, token="own")
    fetch_with(serve(security=plain).address, plain)
    fetch_with(serve(security=secure(files, "own")).address, secure(files, ca="own"))
    both = secure(files, "own", "own", "own")
    address = serve(security=both).address
    fetch_with(address, both)
    for pair, ca in (("", ""), ("", "own"), ("other", "both"), ("other", "other")):
        with pytest.raises(ServerUnavailable):
            fetch_with(address, secure(files, pair, ca, "own"), limit=0.4)
    with pytest.raises(ServerFault, match="UNAUTHENTICATED: expected this cluster's") as fault:
        fetch_with(address, secure(files, "own", "own", "other"))
    assert OTHER not in str(fault.value)
    assert TOKEN not in str(fault.value)


def test_a_server_follows_its_certificates(files, serve, tmp_path, capfd):
    """Those that do not fit each other leave the earlier ones in use."""

    def put(name: str, *kinds: str) -> None:
        for kind in kinds:
            shutil.copy(files / f"{name}-{kind}.pem", tmp_path / f"now-{kind}.pem")

    put("own", "certificate", "key")
    address = serve(security=secure(tmp_path, "now")).address
    own, other = secure(files, ca="own"), secure(files, ca="other")
    put("other", "certificate")
    for _ in range(2):
        fetch_with(address, own)
    warnings = capfd.readouterr().err
    assert warnings.count("warning: the earlier certificates stay in use: tls_c") == 1
    put("other", "key")
    fetch_with(address, other)
    with pytest.raises(ServerUnavailable):
        fetch_with(address, own, limit=0.4)


def test_without_the_token_nothing_is_told(files, serve):
    address = serve(security=secure(files, token="own")).address
    name = "authorization"
    for shown in (None, ((name, f"Bearer {OTHER}"),), ((name, f"Bearer {TOKEN}"),) * 2):
        with grpc.insecure_channel(address) as channel:
            for method in (DESCRIBE, CHECK, FETCH_ROWS, SAMPLE_NEIGHBORS, "/other.Service/Method"):
                with pytest.raises(grpc.RpcError) as caught:
                    list(channel.unary_stream(method)(b"", metadata=shown, timeout=5))
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, method
                assert caught.value.details() == "expected this cluster's token"
    token = Token(str(files / "own-token"))
    assert token.is_shown_by([(name, f"Bearer {TOKEN}"), ("user-agent", "x")])
    for wrong in (TOKEN, f"bearer {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer "):
        assert not token.is_shown_by([(name, wrong)])


def test_addresses_beyond_loopback_need_certificates(files, serve):
    for listen in ("0.0.0.0:0", "[::]:0"):
        with pytest.raises(SecurityError, match=r"^insecure: listening on .* anybody in between"):
            serve(security=secure(files, token="own"), listen=listen)
    with pytest.raises(ListenError, match="is no address"):
        serve(listen="no.such.name.invalid:0")
    for security in (secure(files, "own"), Security(insecure=True)):
        serve(security=security, listen="0.0.0.0:0")
    far = ["127.0.0.1:1", "192.0.2.1:2"]
    with pytest.raises(SecurityError, match=r"^insecure: talking to 192\.0\.2\.1:2, .*tls_ca"):
        FeatureClient(far)
    for security in (Security(insecure=True), secure(files, ca="own")):
        FeatureClient(far, security=security).close()


def test_files_that_do_not_fit_are_refused_in_a_line(files, tmp_path):
    broken, missing = str(tmp_path / "broken.pem"), str(tmp_path / "none")
    Path(broken).write_text("-----BEGIN CERTIFICATE-----\nAAAA\n")
    pair: dict[str, Any] = vars(secure(files, "own"))
    cases: dict[str, dict[str, Any]] = {
        "tls_key, tls_certificate: expected both": {"tls_key": pair["tls_key"]},
        "tls_ca: on a server it is for clients' certificates": vars(secure(files, ca="own")),
        "tls_ca: .*none: expected PEM certificates: No": pair | {"tls_ca": missing},
        "tls_ca: .*broken.pem: expected PEM certificates": pair | {"tls_ca": broken},
        "tls_certificate, tls_key: .*MISMATCH": pair | {"tls_key": str(files / "other-key.pem")},
        "tls_certificate, tls_key: .*expected a PEM certificate": pair | {"tls_key": broken},
        "token_file: .*expected a line of ASCII": {"token_file": missing},
        "token_file: .*expected a line of 16 to 4,096 printable": {"token_file": broken},
    }
    for expected, values in cases.items():
        with pytest.raises(SecurityError, match=f"^{expected}") as caught:
            Security(**values).check_server("127.0.0.1:0")
        assert "\n" not in str(caught.value)
    with pytest.raises(SecurityError, match=r"^tls_certificate: clients show theirs"):
        secure(files, "own").check_client([])


def test_certificates_that_the_other_end_would_refuse_are_refused_at_the_start(
    files, serve, tmp_path
):
    now = datetime.now(UTC)
    issue(tmp_path, "old", not_before=now - timedelta(9), not_after=now - timedelta(2))
    issue(tmp_path, "early", not_before=now + timedelta(2), not_after=now + timedelta(9))
    for security, reason in (
        (secure(tmp_path, "old", "old"), "certificate has expired; have it issued anew"),
        (secure(tmp_path, "early", "early"), "certificate is not yet valid; "),
        (secure(files, "other", "own"), "unable to get local issuer"),
    ):
        expected = rf"^tls_certificate: {security.tls_certificate}: not vouched for by .*: {reason}"
        with pytest.raises(SecurityError, match=expected):
            serve(security=security)
        with pytest.raises(SecurityError, match=expected):
            FeatureClient(["127.0.0.1:1"], security=security)
    with pytest.raises(SecurityError, match=r"old-certificate.pem: certificate has expired; have"):
        serve(security=secure(tmp_path, "old"))


def test_secrets_that_others_can_read_are_told(files, serve, capfd):
    security, file = secure(files, token="own"), files / "own-token"
    address = serve(security=security).address
    file.chmod(0o640)
    FeatureClient([address], security=security).close()
    file.chmod(0o600)
    text = f"token_file: {file}: its group can read it (mode 640); chmod 600 {file}\n"
    assert capfd.readouterr().err.endswith(f"  warning: {text}")
