"""An issuer of JSON Web Tokens, written from RFC 7515, with every part open to tampering."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
NAME_OF_CURVE = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}


def encoded(data: bytes | dict[str, Any]) -> str:
    """Base64url, of a dict as JSON."""
    text = data if isinstance(data, bytes) else json.dumps(data, separators=(",", ":")).encode()
    return urlsafe_b64encode(text).rstrip(b"=").decode()


def number(value: int, length: int | None = None) -> str:
    return encoded(value.to_bytes(length or (value.bit_length() + 7) // 8, "big"))


def rsa_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65_537, key_size=bits)


def signature(key: Any, algorithm: str, message: bytes) -> bytes:
    digest: Any = {"256": hashes.SHA256, "384": hashes.SHA384, "512": hashes.SHA512}[algorithm[2:]]()
    match algorithm[:2]:
        case "HS":
            return hmac.digest(key, message, f"sha{algorithm[2:]}")
        case "RS":
            return bytes(key.sign(message, padding.PKCS1v15(), digest))
        case "PS":
            return bytes(key.sign(message, padding.PSS(padding.MGF1(digest), digest.digest_size), digest))
    r, s = decode_dss_signature(key.sign(message, ec.ECDSA(digest)))
    length = (key.curve.key_size + 7) // 8
    return r.to_bytes(length, "big") + s.to_bytes(length, "big")


def jwk(key: Any, key_id: str | None, **members: Any) -> dict[str, Any]:
    """The public half of a key, as a set has it."""
    named = {} if key_id is None else {"kid": key_id}
    numbers = key.public_key().public_numbers()
    if isinstance(key, rsa.RSAPrivateKey):
        return {"kty": "RSA", **named, "n": number(numbers.n), "e": number(numbers.e), **members}
    length = (key.curve.key_size + 7) // 8
    curve = next(NAME_OF_CURVE[name] for name, each in CURVES.items() if each.name == key.curve.name)
    return {
        "kty": "EC",
        **named,
        "crv": curve,
        "x": number(numbers.x, length),
        "y": number(numbers.y, length),
        **members,
    }


def pem(key: Any) -> bytes:
    return bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def claims(subject: object = "alice", **more: Any) -> dict[str, Any]:
    """Those of a good token; None leaves one out."""
    now = int(time.time())
    found = {"sub": subject, "iat": now, "exp": now + 3_600, "iss": "https://issuer", "aud": "raylog", **more}
    return {name: value for name, value in found.items() if value is not None}


class Issuer:
    """Has one key for each algorithm: ``rsa`` for RS* and PS*, and one for each curve."""

    def __init__(self) -> None:
        shared = rsa_key()
        self.keys: dict[str, tuple[str, Any]] = {
            **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("rsa", shared)),
            **{name: (NAME_OF_CURVE[name], ec.generate_private_key(curve)) for name, curve in CURVES.items()},
        }

    def jwks(self) -> list[dict[str, Any]]:
        return [jwk(key, key_id) for key_id, key in dict(self.keys.values()).items()]

    def write(self, file: Path) -> str:
        """Write the set; its URL."""
        file.write_text(json.dumps({"keys": self.jwks()}))
        return file.as_uri()

    def token(
        self,
        said: dict[str, Any] | bytes | None = None,
        algorithm: str = "RS256",
        *,
        key: Any = None,
        header: dict[str, Any] | bytes | None = None,
        **members: Any,
    ) -> str:
        """A token of those claims, signed with the algorithm's key unless there is another one.
        ``members`` are the header's; None leaves one out; ``header`` stands instead of all.
        """
        key_id, own = self.keys.get(algorithm, ("rsa", None))
        found = {"typ": "JWT", "alg": algorithm, "kid": key_id, **members}
        whole = {name: value for name, value in found.items() if value is not None} if header is None else header
        message = f"{encoded(whole)}.{encoded(claims() if said is None else said)}"
        return f"{message}.{encoded(signature(own if key is None else key, algorithm, message.encode()))}"


def unsecured(said: dict[str, Any] | None = None, **header: Any) -> str:
    """A token that nobody has signed."""
    return f"{encoded({'alg': 'none', **header})}.{encoded(claims() if said is None else said)}."


def message(token: str, authzid: str = "", extensions: str = "") -> bytes:
    """What an OAUTHBEARER client sends first."""
    named = f"a={authzid}" if authzid else ""
    return f"n,{named},\x01auth=Bearer {token}\x01{extensions}\x01".encode()


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
