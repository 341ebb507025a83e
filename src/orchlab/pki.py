"""Certificates of one environment: its own authorities, server and client pairs, the service-account key. Renewed in time.

Keys are ECDSA P-256. Authorities live ten years, pairs one; a pair with less than a third of its life left is made anew.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from orchlab.paths import private_folder, write_private

AUTHORITY_LIFE = timedelta(days=3650)
PAIR_LIFE = timedelta(days=365)
FORM_OF_ROTATION = serialization.PrivateFormat.TraditionalOpenSSL  # PKCS#1 for an RSA key


@dataclass(frozen=True)
class Pair:
    """A certificate that is wanted. `names` (DNS names and IP addresses) makes it a server's; a client's always also works as one."""

    file: str
    common_name: str
    organisations: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    authority: str = "ca"


def ensure(folder: Path, pairs: list[Pair], now: datetime | None = None, rotated: tuple[str, ...] = ()) -> list[str]:
    """Makes what is missing, expiring or different from what is wanted in `folder`; returns the names of the files that are new. Authorities in
    `rotated` are as the cert-controller that is built into Kueue reads them: with an RSA key (PKCS#1), and their file's name as a DNS name.

    Files: NAME.crt (PEM) and NAME.key (PKCS#8 PEM, but for `rotated`) for each authority and pair; all 0600.
    """
    now = now or datetime.now(UTC)
    private_folder(folder)
    made: list[str] = []
    authorities: dict[str, tuple[x509.Certificate, ec.EllipticCurvePrivateKey]] = {}
    for name in dict.fromkeys(pair.authority for pair in pairs):
        certificate = _load(folder / f"{name}.crt")
        if certificate is None or not _fresh(certificate, now) or not (folder / f"{name}.key").exists():
            _make_authority(folder, name, now, name in rotated)
            made.append(name)
        authorities[name] = (_load(folder / f"{name}.crt"), serialization.load_pem_private_key((folder / f"{name}.key").read_bytes(), None))
    for pair in pairs:
        certificate = _load(folder / f"{pair.file}.crt")
        issuer, key = authorities[pair.authority]
        if certificate is None or not _fresh(certificate, now) or not _matches(certificate, pair, issuer) or not (folder / f"{pair.file}.key").exists():
            _make_pair(folder, pair, issuer, key, now)
            made.append(pair.file)
    return made


def ensure_service_account_key(folder: Path) -> None:
    """sa.key signs service-account tokens, sa.pub verifies them. RSA, as RS256 is what every consumer of such tokens knows."""
    if (folder / "sa.key").exists() and (folder / "sa.pub").exists():
        return
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    write_private(folder / "sa.key", _private_pem(key))
    write_private(folder / "sa.pub", key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))


def expires(certificate: Path) -> datetime:
    """When a PEM certificate runs out (UTC)."""
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc


def _fresh(certificate: x509.Certificate, now: datetime) -> bool:
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    # The first test is for a clock that was set back below the day of issue.
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - life / 3


def _load(path: Path) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def _matches(certificate: x509.Certificate, pair: Pair, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except Exception:  # a signature of another key, or another issuer's name
        return False
    return certificate.subject == _subject(pair) and _sans(certificate) == sorted(pair.names)


def _sans(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return sorted(str(name.value) for name in names)


def _subject(pair: Pair) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in pair.organisations]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, pair.common_name)])


def _builder(subject: x509.Name, issuer: x509.Name, key, now: datetime, life: timedelta) -> x509.CertificateBuilder:
    # An hour back: clocks of a laptop after a suspend.
    return (x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
            .serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(hours=1)).not_valid_after(now + life)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False))


def _make_authority(folder: Path, name: str, now: datetime, rotated: bool) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048) if rotated else ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name if rotated else f"orchlab-{name}")])
    usage = x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
                          data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False)
    builder = (_builder(subject, subject, key, now, AUTHORITY_LIFE).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
               .add_extension(usage, critical=True))
    if rotated:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    _write(folder / name, builder.sign(key, hashes.SHA256()), key, FORM_OF_ROTATION if rotated else serialization.PrivateFormat.PKCS8)


def _make_pair(folder: Path, pair: Pair, issuer: x509.Certificate, issuer_key, now: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH] + ([ExtendedKeyUsageOID.SERVER_AUTH] if pair.names else [])
    life = min(PAIR_LIFE, issuer.not_valid_after_utc - now)
    builder = (_builder(_subject(pair), issuer.subject, key, now, life)
               .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
               .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
               .add_extension(x509.ExtendedKeyUsage(usages), critical=False))
    if pair.names:
        builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(name) for name in pair.names]), critical=False)
    _write(folder / pair.file, builder.sign(issuer_key, hashes.SHA256()), key)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(stem: Path, certificate: x509.Certificate, key, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8) -> None:
    write_private(stem.with_name(stem.name + ".key"), _private_pem(key, form))
    write_private(stem.with_name(stem.name + ".crt"), certificate.public_bytes(serialization.Encoding.PEM))


def _private_pem(key, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
