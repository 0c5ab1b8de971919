"""The service's certificate: the site's own, or for trials one that it makes itself."""

from __future__ import annotations

import os
import socket
import ssl
import stat
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_VALID_DAYS = 365
_SOON_S = 30 * 86400.0


class TlsError(Exception):
    """A certificate or a key cannot be used, or be read or made: one sentence with the remedy."""


def check_pair(cert: Path, key: Path) -> None:
    """Raise TlsError unless these are a certificate and its key, which no other user can read."""
    for path, what in ((cert, "certificate"), (key, "key")):
        try:
            mode = path.stat().st_mode
            path.open("rb").close()
        except OSError as error:
            raise TlsError(
                f"the {what} {path} cannot be read: {error.strerror}; let uid {os.geteuid()} read it, "
                "or try with --self-signed DIRECTORY"
            ) from error
        if path == key and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise TlsError(f"others can read the key {key}; chmod 600 it, and renew it")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(
            f"{cert} and {key} are no certificate and its key: {error}; give a pair in PEM"
        ) from error


def self_made(directory: Path, now_s: float, address: str = "127.0.0.1") -> tuple[Path, Path]:
    """Return a certificate and a key in this directory; they are made where they are not there.

    So they are in the place of a certificate that has ended, or that is not for this address: no client
    would take it. `address`: where the service listens, for which the certificate holds beside the machine's
    names. TlsError where they cannot be made.
    """
    cert, key = directory / "web.crt", directory / "web.key"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (key.exists() and _serves(cert, now_s, address)):
            cert.unlink(missing_ok=True)  # without it both are made anew, however far the next lines come
            _make(cert, key, now_s, address)
    except OSError as error:
        raise TlsError(f"{directory} cannot be written: {error.strerror}; name another one") from error
    check_pair(cert, key)
    return cert, key


def _serves(cert: Path, now_s: float, address: str) -> bool:
    """Return True if it holds now, and for this address. One that is damaged does not."""
    try:
        found = x509.load_pem_x509_certificate(cert.read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (FileNotFoundError, ValueError, x509.ExtensionNotFound):
        return False
    addresses = names.get_values_for_type(x509.IPAddress)
    return found.not_valid_after_utc.timestamp() > now_s and ip_address(address) in addresses


def ending(cert: Path, now_s: float) -> str:
    """Say of a certificate that has ended, or will within a month; empty: it holds for longer."""
    end = x509.load_pem_x509_certificate(cert.read_bytes()).not_valid_after_utc
    if end.timestamp() > now_s + _SOON_S:
        return ""
    if end.timestamp() > now_s:
        return f"the certificate {cert} ends on {end:%Y-%m-%d}; renew it, and start the service anew"
    return f"the certificate {cert} ended on {end:%Y-%m-%d}, and no client takes it; renew it, and start anew"


def _make(cert: Path, key: Path, now_s: float, address: str) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    host = socket.getfqdn()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    now = datetime.fromtimestamp(now_s, UTC)
    names: list[x509.GeneralName] = [
        x509.DNSName(one) for one in sorted({host, socket.gethostname(), "localhost"})
    ]
    names += [x509.IPAddress(ip_address(one)) for one in sorted({address, "127.0.0.1", "::1"})]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=_VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    text = private.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    with os.fdopen(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(text)
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))


def fingerprint(cert: Path) -> str:
    """Return the SHA-256 of a certificate, as browsers show it."""
    found = x509.load_pem_x509_certificate(cert.read_bytes())
    digest = sha256(found.public_bytes(serialization.Encoding.DER)).hexdigest().upper()
    return ":".join(digest[i : i + 2] for i in range(0, len(digest), 2))
