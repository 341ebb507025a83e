"""Certificates: right names, right authority, renewed in time, private."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from orchlab import pki
from orchlab.pki import Pair

SERVER = Pair("server", "a-server", names=("127.0.0.1", "localhost"))
CLIENT = Pair("client", "a-client", ("a-group",))


def test_second_call_changes_nothing(tmp_path):
    assert pki.ensure(tmp_path / "pki", [SERVER, CLIENT]) == ["ca", "server", "client"]
    assert pki.ensure(tmp_path / "pki", [SERVER, CLIENT]) == []


def test_files_are_private(tmp_path):
    pki.ensure(tmp_path / "pki", [SERVER])
    pki.ensure_service_account_key(tmp_path / "pki")
    assert stat.S_IMODE((tmp_path / "pki").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "pki").iterdir()} == {0o600}


def test_server_and_client_accept_each_other(tmp_path):
    pki.ensure(tmp_path, [SERVER, CLIENT])
    assert _handshake(tmp_path, "client", "ca") == "a-client"


def test_client_of_another_authority_is_refused(tmp_path):
    pki.ensure(tmp_path, [SERVER, Pair("stranger", "a-client", authority="other-ca")])
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _handshake(tmp_path, "stranger", "ca")


@pytest.mark.parametrize("days", [250, 400])
def test_pairs_are_renewed_when_a_third_of_their_life_is_left(tmp_path, days):
    pki.ensure(tmp_path, [SERVER])
    assert pki.ensure(tmp_path, [SERVER], now=datetime.now(UTC) + timedelta(days=240)) == []
    assert pki.ensure(tmp_path, [SERVER], now=datetime.now(UTC) + timedelta(days=days)) == ["server"]
    assert pki.expires(tmp_path / "server.crt") > datetime.now(UTC) + timedelta(days=days + 300)


def test_a_clock_set_back_gives_new_certificates(tmp_path):
    pki.ensure(tmp_path, [SERVER])
    assert pki.ensure(tmp_path, [SERVER], now=datetime.now(UTC) - timedelta(days=2)) == ["ca", "server"]


def test_other_names_or_subject_give_a_new_pair(tmp_path):
    pki.ensure(tmp_path, [SERVER])
    assert pki.ensure(tmp_path, [Pair("server", "a-server", names=("127.0.0.1",))]) == ["server"]
    assert pki.ensure(tmp_path, [Pair("server", "another", names=("127.0.0.1",))]) == ["server"]


def test_a_new_authority_renews_its_pairs(tmp_path):
    pki.ensure(tmp_path, [SERVER])
    (tmp_path / "ca.crt").unlink()
    assert pki.ensure(tmp_path, [SERVER]) == ["ca", "server"]


def test_a_broken_certificate_is_replaced(tmp_path):
    pki.ensure(tmp_path, [SERVER])
    (tmp_path / "server.crt").write_text("not a certificate")
    assert pki.ensure(tmp_path, [SERVER]) == ["server"]
    x509.load_pem_x509_certificate((tmp_path / "server.crt").read_bytes())


def _handshake(folder, client: str, authority: str) -> str:
    """One mutual TLS handshake over loopback; returns the client's common name as the server saw it."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / f"{authority}.crt")
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    server.verify_mode = ssl.CERT_REQUIRED
    seen = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve():
            connection, _ = listener.accept()
            connection.settimeout(10)
            try:
                with server.wrap_socket(connection, server_side=True) as secure:
                    seen.extend(part[0][1] for part in secure.getpeercert()["subject"] if part[0][0] == "commonName")
                    secure.sendall(b"x")
            except (ssl.SSLError, OSError):
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            ours = ssl.create_default_context(cafile=folder / f"{authority}.crt")
            ours.load_cert_chain(folder / f"{client}.crt", folder / f"{client}.key")
            with socket.create_connection(listener.getsockname(), timeout=10) as raw, ours.wrap_socket(raw, server_hostname="localhost") as secure:
                if secure.recv(1) != b"x":
                    raise ConnectionError("refused")
        finally:
            thread.join(10)
    return seen[0]
