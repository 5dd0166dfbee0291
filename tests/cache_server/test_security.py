"""With TLS, mutual TLS and tokens, only clients of this cluster get rows."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
import trustme

from cache_server.client import FeatureClient
from cache_server.errors import ListenError, SecurityError, ServerFault, ServerUnavailable
from cache_server.security import Security, Token
from cache_server.wire import CHECK, DESCRIBE, FETCH_ROWS, SAMPLE_NEIGHBORS
from tests.cache_server.conftest import Serve, fetch

TOKEN = "of-this-cluster-0123456789"
OTHER = "of-another-cluster-0123456"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates, keys and tokens of this cluster and of another."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("own", "other"):
        issue(folder, name)
    (folder / "token").write_text(f"{TOKEN}\n")
    (folder / "other-token").write_text(OTHER)
    for name in ("token", "other-token"):
        (folder / name).chmod(0o600)
    return folder


def issue(folder: Path, name: str, **validity: datetime) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost", **validity)
    authority.cert_pem.write_to_path(folder / f"{name}-ca.pem")
    certificate.private_key_pem.write_to_path(folder / f"{name}-key.pem")
    (folder / f"{name}-key.pem").chmod(0o600)
    for number, blob in enumerate(certificate.cert_chain_pems):
        blob.write_to_path(folder / f"{name}-certificate.pem", append=number > 0)


def tls(folder: Path, name: str = "own", **more: str) -> dict[str, str]:
    """Return the fields of ``Security`` for a certificate and its key."""
    pair = {f"tls_{file}": str(folder / f"{name}-{file}.pem") for file in ("certificate", "key")}
    return pair | more


def ca(folder: Path, name: str = "own") -> str:
    return str(folder / f"{name}-ca.pem")


def fetch_with(address: str, security: Security, limit: float = 10.0) -> None:
    with FeatureClient([address], deadline=limit, security=security) as client:
        fetch(client, [3, 0, 39, 3])


def test_clients_with_token_and_certificates_get_rows(files: Path, serve: Serve) -> None:
    token, authority = str(files / "token"), ca(files)
    plain = Security(token_file=token)
    fetch_with(serve(security=plain).address, plain)
    one_way = serve(security=Security(**tls(files)))
    fetch_with(one_way.address, Security(tls_ca=authority))
    both = Security(tls_ca=authority, token_file=token, **tls(files))
    fetch_with(serve(security=both).address, both)


def test_a_server_follows_its_certificates(
    files: Path, serve: Serve, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Those that do not fit each other leave the earlier ones in use."""

    def put(name: str, *kinds: str) -> None:
        for kind in kinds:
            shutil.copy(files / f"{name}-{kind}.pem", tmp_path / f"now-{kind}.pem")

    put("own", "certificate", "key")
    address = serve(security=Security(**tls(tmp_path, "now"))).address
    own, other = (Security(tls_ca=ca(files, name)) for name in ("own", "other"))
    put("other", "certificate")
    fetch_with(address, own)
    assert "warning: the earlier certificates stay in use: tls_c" in capfd.readouterr().err
    put("other", "key")
    fetch_with(address, other)
    with pytest.raises(ServerUnavailable):
        fetch_with(address, own, limit=0.4)


@pytest.mark.parametrize("shown", ["nothing", "another cluster's", "twice"])
def test_without_the_token_nothing_is_told(files: Path, serve: Serve, shown: str) -> None:
    address = serve(security=Security(token_file=str(files / "token"))).address
    metadata = {
        "nothing": None,
        "another cluster's": (("authorization", f"Bearer {OTHER}"),),
        "twice": (("authorization", f"Bearer {TOKEN}"),) * 2,
    }[shown]
    with grpc.insecure_channel(address) as channel:
        for method in (DESCRIBE, CHECK, FETCH_ROWS, SAMPLE_NEIGHBORS, "/other.Service/Method"):
            with pytest.raises(grpc.RpcError) as caught:
                list(channel.unary_stream(method)(b"", metadata=metadata, timeout=5))
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, method
            assert caught.value.details() == "expected this cluster's token"
    with pytest.raises(ServerFault, match="UNAUTHENTICATED: expected this cluster's") as fault:
        fetch_with(address, Security(token_file=str(files / "other-token")))
    assert OTHER not in str(fault.value)
    assert TOKEN not in str(fault.value)


def test_without_a_certificate_nothing_is_told(files: Path, serve: Serve) -> None:
    address = serve(security=Security(tls_ca=ca(files), **tls(files))).address
    both = files / "both-ca.pem"
    both.write_bytes(b"".join(Path(ca(files, name)).read_bytes() for name in ("own", "other")))
    for wrong in (
        Security(),
        Security(tls_ca=ca(files)),
        Security(tls_ca=str(both), **tls(files, "other")),
        Security(tls_ca=ca(files, "other"), **tls(files, "other")),
    ):
        with pytest.raises(ServerUnavailable):
            fetch_with(address, wrong, limit=0.4)
    fetch_with(address, Security(tls_ca=ca(files), **tls(files)))


def test_listening_beyond_loopback_needs_certificates(files: Path, serve: Serve) -> None:
    for listen in ("0.0.0.0:0", "[::]:0"):
        with pytest.raises(SecurityError, match=r"^insecure: listening on .* anybody in between"):
            serve(security=Security(token_file=str(files / "token")), listen=listen)
    with pytest.raises(ListenError, match="is no address"):
        serve(listen="no.such.name.invalid:0")
    for security in (Security(**tls(files)), Security(insecure=True)):
        serve(security=security, listen="0.0.0.0:0")


def test_asking_beyond_loopback_needs_certificates(files: Path) -> None:
    far = ["127.0.0.1:1", "192.0.2.1:2"]
    with pytest.raises(SecurityError, match=r"^insecure: talking to 192\.0\.2\.1:2, .*tls_ca"):
        FeatureClient(far)
    for security in (Security(insecure=True), Security(tls_ca=ca(files))):
        FeatureClient(far, security=security).close()


def test_certificates_and_tokens_that_do_not_fit_are_refused_in_a_line(
    files: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n")
    pair = tls(files)
    for values, expected in (
        ({"tls_key": pair["tls_key"]}, "tls_key, tls_certificate: expected both or neither"),
        ({"tls_ca": ca(files)}, "tls_ca: on a server it is for clients' certificates"),
        (
            {**pair, "tls_ca": str(tmp_path / "none")},
            "tls_ca: .*none: expected PEM certificates: No",
        ),
        ({**pair, "tls_ca": str(broken)}, "tls_ca: .*broken.pem: expected PEM certificates"),
        (
            {**pair, "tls_key": tls(files, "other")["tls_key"]},
            "tls_certificate, tls_key: .*MISMATCH",
        ),
        (
            {**pair, "tls_key": str(broken)},
            "tls_certificate, tls_key: .*expected a PEM certificate",
        ),
        ({"token_file": str(tmp_path / "none")}, "token_file: .*expected a line of ASCII"),
        ({"token_file": str(broken)}, "token_file: .*expected a line of 16 to 4,096 printable"),
    ):
        with pytest.raises(SecurityError, match=f"^{expected}") as caught:
            Security(**values).check_server("127.0.0.1:1")
        assert "\n" not in str(caught.value)
    with pytest.raises(SecurityError, match=r"^tls_certificate: clients show theirs"):
        Security(**pair).check_client([])


def test_certificates_that_the_other_end_would_refuse_are_refused_at_the_start(
    files: Path, serve: Serve, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    issue(tmp_path, "old", not_before=now - timedelta(9), not_after=now - timedelta(2))
    issue(tmp_path, "early", not_before=now + timedelta(2), not_after=now + timedelta(9))
    foreign = tls(files, "other")
    for pair, authority, reason in (
        (tls(tmp_path, "old"), ca(tmp_path, "old"), "expired on .*, 2 days ago; have it issued"),
        (tls(tmp_path, "early"), ca(tmp_path, "early"), "not valid before "),
        (foreign, ca(files), f"not vouched for by {ca(files)}: unable to get local issuer"),
    ):
        security = Security(tls_ca=authority, **pair)
        expected = rf"^tls_certificate: {pair['tls_certificate']}: {reason}"
        with pytest.raises(SecurityError, match=expected):
            serve(security=security)
        with pytest.raises(SecurityError, match=expected):
            FeatureClient(["127.0.0.1:1"], security=security)
    with pytest.raises(SecurityError, match="expired on"):
        serve(security=Security(**tls(tmp_path, "old")))


def test_secrets_that_others_can_read_are_told(
    files: Path, serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    security = Security(token_file=str(files / "token"))
    address = serve(security=security).address
    (files / "token").chmod(0o640)
    FeatureClient([address], security=security).close()
    (files / "token").chmod(0o600)
    assert capfd.readouterr().err.endswith(
        f"  warning: token_file: {files}/token: its group can read it (mode 640); chmod 600 "
        f"{files}/token\n"
    )


def test_a_part_of_a_token_is_not_accepted(files: Path) -> None:
    with_name = [("authorization", f"Bearer {TOKEN}"), ("user-agent", "x")]

    token = Token(str(files / "token"))
    assert token.is_shown_by(with_name)
    for wrong in (TOKEN, f"bearer {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer "):
        assert not token.is_shown_by([("authorization", wrong)])
