"""Decisions about users' credentials: Kafka's errors, one outcome per user, and all or nothing for each."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from raylog.metadata.users.credential_requests import (
    AlterUserScramCredentials,
    DescribeUserScramCredentials,
    ScramDeletion,
    ScramUpsertion,
)
from raylog.security.scram import ScramMechanism, credential_of, has_password, salt_of, salted_password

SHA_256, SHA_512 = 1, 2
SALT = b"0123456789abcdef"


def upsertion(user: str, mechanism: int = SHA_256, password: str = "secret", iterations: int = 4_096) -> ScramUpsertion:
    salted = salted_password(ScramMechanism(mechanism), password, SALT, 4_096)
    return ScramUpsertion(user, mechanism, iterations, SALT, salted)


def alter(world, *asked: ScramDeletion | ScramUpsertion) -> dict[str, str]:
    reply = world.ask(
        AlterUserScramCredentials(
            tuple(each for each in asked if isinstance(each, ScramDeletion)),
            tuple(each for each in asked if isinstance(each, ScramUpsertion)),
        )
    )
    return {each.user: ErrorCode(each.error).name for each in reply.users}


def users(world, *names: str) -> dict[str, tuple[str, tuple[tuple[int, int], ...]]]:
    reply = world.ask(DescribeUserScramCredentials(names))
    return {each.user: (ErrorCode(each.error).name, each.credentials) for each in reply.users}


def test_credentials_are_set_replaced_described_and_removed(world) -> None:
    assert alter(world, upsertion("alice"), upsertion("alice", SHA_512), upsertion("bob", iterations=8_192)) == {
        "alice": "none",
        "bob": "none",
    }
    both = ("none", ((SHA_256, 4_096), (SHA_512, 4_096)))
    assert users(world) == {"alice": both, "bob": ("none", ((SHA_256, 8_192),))}
    assert alter(world, upsertion("bob", iterations=16_384), ScramDeletion("alice", SHA_256)) == {
        "alice": "none",
        "bob": "none",
    }
    assert users(world, "bob", "alice") == {
        "bob": ("none", ((SHA_256, 16_384),)),
        "alice": ("none", ((SHA_512, 4_096),)),
    }


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (upsertion("", iterations=4_096), "unacceptable_credential"),
        (upsertion("u", iterations=4_095), "unacceptable_credential"),
        (upsertion("u", iterations=16_385), "unacceptable_credential"),
        (upsertion("u" * 256), "unacceptable_credential"),
        (ScramUpsertion("u", SHA_256, 4_096, b"", b"x" * 32), "unacceptable_credential"),
        (ScramUpsertion("u", SHA_256, 4_096, b"x" * 1_025, b"x" * 32), "unacceptable_credential"),
        (ScramUpsertion("u", SHA_512, 4_096, SALT, b"x" * 32), "unacceptable_credential"),
        (ScramUpsertion("u", 0, 4_096, SALT, b"x" * 32), "unsupported_sasl_mechanism"),
        (ScramDeletion("", SHA_256), "unacceptable_credential"),
        (ScramDeletion("u", 3), "unsupported_sasl_mechanism"),
        (ScramDeletion("u", SHA_256), "resource_not_found"),
    ],
)
def test_what_cannot_be_done_has_kafkas_error_and_changes_nothing(
    world, asked: ScramDeletion | ScramUpsertion, error: str
) -> None:
    assert alter(world, asked, upsertion("other")) == {asked.user: error, "other": "none"}
    assert list(users(world)) == ["other"]


def test_a_user_whose_credential_is_altered_twice_keeps_what_he_has(world) -> None:
    alter(world, upsertion("alice"))
    twice = alter(world, ScramDeletion("alice", SHA_256), upsertion("alice"), upsertion("alice", SHA_512))
    assert twice == {"alice": "duplicate_resource"}
    assert users(world) == {"alice": ("none", ((SHA_256, 4_096),))}


def test_one_bad_change_of_a_user_stops_his_others_too(world) -> None:
    assert alter(world, upsertion("alice"), ScramDeletion("alice", SHA_512)) == {"alice": "resource_not_found"}
    assert users(world) == {}


def test_descriptions_say_who_is_unknown_or_asked_for_twice(world) -> None:
    alter(world, upsertion("alice"))
    assert users(world, "alice", "alice", "bob") == {
        "alice": ("duplicate_resource", ()),
        "bob": ("resource_not_found", ()),
    }


def test_the_image_has_keys_and_no_password_and_shows_neither(world) -> None:
    alter(world, upsertion("alice", password="a long secret"))
    (credential,) = world.controller.image.credentials.values()
    salted = salted_password(ScramMechanism.SCRAM_SHA_256, "a long secret", SALT, 4_096)
    assert credential == credential_of(ScramMechanism.SCRAM_SHA_256, salted, SALT, 4_096)
    assert salted not in (credential.salt, credential.stored_key, credential.server_key)
    assert str(credential) == "ScramCredential(iterations=4096)"
    assert "salt" not in repr(upsertion("alice"))
    assert has_password(ScramMechanism.SCRAM_SHA_256, credential, "a long secret")
    assert not has_password(ScramMechanism.SCRAM_SHA_256, credential, "A long secret")


def test_salts_are_130_bits_in_base_36() -> None:
    assert int(salt_of(b"\xff" * 17), 36) == 2**130 - 1
