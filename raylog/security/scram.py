"""SCRAM's keys (RFC 5802, RFC 7677): what is kept of a user's password, and what it is made of.

A credential lets the server check a proof. It does not let anybody log in, and the password cannot
be read from it, only guessed against it::

    salted password = PBKDF2(password, salt, iterations)
    stored key      = H(HMAC(salted password, "Client Key"))
    server key      = HMAC(salted password, "Server Key")

Users and passwords are the UTF-8 of what was given. As in Apache Kafka, and in its clients, nothing
is normalised (SASLprep), so two names that look alike stay two users.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
SALT_BITS: Final = 130  # of the salts that Kafka's tools make

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class ScramMechanism(Enum):
    """By Kafka's codes."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        """As clients call it."""
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        return self.name.removeprefix("SCRAM_").replace("_", "").lower()

    @property
    def key_bytes(self) -> int:
        return hashlib.new(self.hash_name).digest_size

    def hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self.hash_name)

    def hash(self, data: bytes) -> bytes:
        return hashlib.new(self.hash_name, data).digest()


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What is kept of one user's password for one mechanism."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


CredentialKey = tuple[str, ScramMechanism]
"""Whose credential it is: the user's name, and the mechanism."""


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Takes about a millisecond for 4,096 iterations."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """The credential of a salted password."""
    client_key = mechanism.hmac(salted, b"Client Key")
    return ScramCredential(salt, mechanism.hash(client_key), mechanism.hmac(salted, b"Server Key"), iterations)


def has_password(mechanism: ScramMechanism, credential: ScramCredential, password: str) -> bool:
    """Whether the credential is of this password. As slow as ``salted_password``."""
    salted = salted_password(mechanism, password, credential.salt, credential.iterations)
    stored_key = mechanism.hash(mechanism.hmac(salted, b"Client Key"))
    return hmac.compare_digest(stored_key, credential.stored_key)


def salt_of(entropy: bytes) -> bytes:
    """The salt that Kafka's tools would make of so much randomness (17 bytes or more): 130 bits in
    base 36. All salts look alike, so that none says which tool made it.
    """
    number = int.from_bytes(entropy, "big") % (1 << SALT_BITS)
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits.encode()
