"""Keys, tokens and kubeconfig files of the rig's control plane."""

import base64
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import yaml

# SEC1 "EC PRIVATE KEY" for curve P-256 without the optional public key: version 1, a 32-byte
# secret, the curve's object identifier 1.2.840.10045.3.1.7. Source: RFC 5915, section 3.
# Readers compute the public half, so no cryptography library is needed to write one.
_SEC1_PREFIX = bytes.fromhex("30310201010420")
_SEC1_SUFFIX = bytes.fromhex("a00a06082a8648ce3d030107")
_SECRET_BYTES = 32
_PEM_LINE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A static token of the API server, with its user and group."""

    user: str
    group: str
    secret: str


def new_token(user: str, group: str) -> Token:
    """A fresh random token for this user."""
    return Token(user=user, group=group, secret=secrets.token_hex(16))


def write_token_file(path: Path, tokens: list[Token]) -> None:
    """Write the file for kube-apiserver's ``--token-auth-file``, readable only by its owner."""
    lines = (f'{token.secret},{token.user},{token.user},"{token.group}"' for token in tokens)
    _write_private(path, "\n".join(lines) + "\n")


def write_signing_key(path: Path) -> None:
    """Write a new P-256 private key in PEM for signing ServiceAccount tokens."""
    # A secret must be below the order of the curve, which begins with 32 one-bits. A leading zero
    # byte ensures that.
    secret = b"\x00" + os.urandom(_SECRET_BYTES - 1)
    body = base64.b64encode(_SEC1_PREFIX + secret + _SEC1_SUFFIX).decode()
    lines = [body[start : start + _PEM_LINE] for start in range(0, len(body), _PEM_LINE)]
    _write_private(
        path,
        "\n".join(["-----BEGIN EC PRIVATE KEY-----", *lines, "-----END EC PRIVATE KEY-----", ""]),
    )


def write_kubeconfig(
    path: Path, *, server: str, certificate_authority: Path, token: str, namespace: str = "default"
) -> Path:
    """Write a kubeconfig that verifies the server and contains ``token``; returns its path.

    It names the certificate's file instead of its content. The Python client would copy the content
    to a temporary file, which stays if the program is killed.
    """
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "rig",
        "clusters": [
            {
                "name": "rig",
                "cluster": {"server": server, "certificate-authority": str(certificate_authority)},
            }
        ],
        "users": [{"name": "rig", "user": {"token": token}}],
        "contexts": [
            {"name": "rig", "context": {"cluster": "rig", "user": "rig", "namespace": namespace}}
        ],
    }
    _write_private(path, yaml.safe_dump(config, sort_keys=False))
    return path


def _write_private(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
