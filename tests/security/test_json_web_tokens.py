"""Which tokens count: their form, keys, signatures and claims."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tokens import Issuer, claims, encoded, jwk, pem, rsa_key, unsecured

from raylog.security.json_web_tokens import (
    ALGORITHMS,
    NAME_CHARACTERS_MAX,
    KeySet,
    Subject,
    TokenHeader,
    TokenRules,
    UnknownKeyError,
    header_of,
    signed_claims,
    subject_of_claims,
    unsecured_claims,
)
from raylog.security.sasl import AuthenticationError

ISSUER = Issuer()
KEYS = KeySet.parse(json.dumps({"keys": ISSUER.jwks()}))
RULES = TokenRules(audiences=frozenset({"raylog", "logs"}), issuer="https://issuer")
NOW = 1_000_000.0


def verified(token: str, keys: KeySet = KEYS) -> dict[str, Any]:
    header = header_of(token)
    return signed_claims(token, header, keys.key_for(header))


def said(**more: Any) -> dict[str, Any]:
    return claims(**{"iat": NOW - 10, "exp": NOW + 100, **more})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_that_one_of_the_keys_has_signed_says_who_it_is(algorithm: str) -> None:
    found = verified(ISSUER.token(said(), algorithm))
    assert subject_of_claims(found, RULES, NOW) == Subject("alice", NOW + 100)
    unnamed = KeySet.parse(json.dumps({"keys": [jwk(ISSUER.keys[algorithm][1], None)]}))
    assert verified(ISSUER.token(said(), algorithm, kid=None), unnamed)["sub"] == "alice"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_signature_of_another_key_or_of_other_words_is_wrong(algorithm: str) -> None:
    key = rsa_key() if algorithm[0] in "RP" else ec.generate_private_key(ISSUER.keys[algorithm][1].curve)
    token = ISSUER.token(said(), algorithm)
    header, _, signature = token.split(".")
    for forged in (
        ISSUER.token(said(), algorithm, key=key),
        f"{header}.{encoded(said(subject='mallory'))}.{signature}",
        f"{header}.{token.split('.')[1]}.{signature[:-8]}",
        f"{header}.{token.split('.')[1]}.{encoded(bytes(len(signature) * 3 // 4))}",
    ):
        with pytest.raises(AuthenticationError, match="whose signature is wrong"):
            verified(forged)


SHARED = pem(ISSUER.keys["RS256"][1])


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (unsecured(said()), "no signed JWT"),
        (unsecured(said()) + encoded(b"x"), "algorithm is none of"),
        (ISSUER.token(said(), alg="none"), "algorithm is none of"),
        (ISSUER.token(said(), alg="None"), "algorithm is none of"),
        (ISSUER.token(said(), alg=None), "algorithm is none of"),
        (ISSUER.token(said(), alg=["RS256"]), "algorithm is none of"),
        (ISSUER.token(said(), "HS256", key=SHARED), "algorithm is none of"),
        (ISSUER.token(said(), alg="ES256"), "not for its algorithm"),  # the key is RSA's
        (ISSUER.token(said(), "ES256", kid="rsa"), "not for its algorithm"),
        (ISSUER.token(said(), "ES256", kid="P-384"), "not for its algorithm"),
        (ISSUER.token(said(), kid="P-256"), "not for its algorithm"),
        (ISSUER.token(said(), kid="unknown"), "not in the set"),
        (ISSUER.token(said(), kid=7), "key id is no text"),
        (ISSUER.token(said(), crit=["exp"], exp=1), "extensions"),
        (ISSUER.token(said(), crit=[]), "extensions"),
        (ISSUER.token(said(), b64=False), "extensions"),
        (ISSUER.token(said(), header=b"[]"), "header is no JSON object"),
        (ISSUER.token(said(), header=b"[" * 9_000), "header cannot be read"),
        (ISSUER.token(said(), header=b'{"alg":"none","kid":"rsa","alg":"RS256"}'), "header cannot be read"),
        (ISSUER.token(said(), header=b'{"alg":"RS256","kid":"\xff"}'), "header cannot be read"),
        (ISSUER.token(b"[" * 9_000), "claims cannot be read"),
        (ISSUER.token(b'{"sub":"alice","sub":"mallory"}'), "claims cannot be read"),
        (ISSUER.token(b'{"exp":NaN}'), "claims cannot be read"),
        (ISSUER.token(b'{"exp":' + b"9" * 5_000 + b"}"), "claims cannot be read"),
        (ISSUER.token(said()) + "\0", "no signed JWT"),
        (ISSUER.token(said()) + "=", "no signed JWT"),
        (ISSUER.token(said()).replace(".", "\x01.", 1), "no signed JWT"),
        (ISSUER.token(said()) + ".x.x", "no signed JWT"),
        ("", "no signed JWT"),
    ],
)
def test_what_is_no_token_of_the_issuer_is_refused(token: str, why: str) -> None:
    with pytest.raises(AuthenticationError, match=why):
        verified(token)


def test_an_unknown_key_is_told_apart_since_it_may_be_new() -> None:
    with pytest.raises(UnknownKeyError):
        KEYS.key_for(TokenHeader("RS256", "tomorrow's"))


def test_a_token_without_a_key_id_needs_a_set_with_one_key_of_its_kind() -> None:
    two = KeySet.parse(json.dumps({"keys": [*ISSUER.jwks(), jwk(rsa_key(), "another")]}))
    with pytest.raises(AuthenticationError, match="which key it is signed with"):
        verified(ISSUER.token(said(), kid=None), two)
    assert verified(ISSUER.token(said(), "ES256", kid=None), two)["sub"] == "alice"


RSA = ISSUER.keys["RS256"][1]


@pytest.mark.parametrize(
    "entry",
    [
        jwk(RSA, "rsa", use="enc"),
        jwk(RSA, "rsa", key_ops=["encrypt"]),
        jwk(RSA, "rsa", key_ops="verify"),
        jwk(RSA, "rsa", alg="RSA-OAEP"),
        jwk(RSA, "rsa", alg="HS256"),
        jwk(RSA, "rsa", n="not base64!"),
        jwk(RSA, "rsa", e=7),
        jwk(RSA, "rsa", kty="oct", k=encoded(b"secret")),
        jwk(RSA, "rsa", kty=["RSA"]),
        jwk(RSA, "rsa", kid=7),
        jwk(rsa_key(1024), "rsa"),
        jwk(ISSUER.keys["ES256"][1], "rsa", crv="secp256k1"),
        jwk(ISSUER.keys["ES256"][1], "rsa", x=encoded(bytes(32))),
        "rsa",
    ],
)
def test_a_key_that_verifies_no_tokens_is_ignored(entry: Any) -> None:
    with pytest.raises(ValueError, match="none of its 1 keys verifies tokens"):
        KeySet.parse(json.dumps({"keys": [entry]}))
    found = KeySet.parse(json.dumps({"keys": [entry, *ISSUER.jwks()]}))
    assert (found.ignored, len(found.keys)) == (1, 4)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys":{}}', '{"keys":[]}', "[" * 100_000, b"\xff"])
def test_what_is_no_key_set_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        KeySet.parse(text)


def test_a_key_is_for_its_own_algorithm_where_it_names_one() -> None:
    keys = KeySet.parse(json.dumps({"keys": [jwk(RSA, "rsa", alg="PS256", use="sig", key_ops=["verify"])]}))
    assert verified(ISSUER.token(said(), "PS256"), keys)["sub"] == "alice"
    with pytest.raises(AuthenticationError, match="not for its algorithm"):
        verified(ISSUER.token(said(), "RS256"), keys)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"exp": None}, "without a time exp"),
        ({"exp": "tomorrow"}, "without a time exp"),
        ({"exp": True}, "without a time exp"),
        ({"exp": NOW - 30}, "expired"),
        ({"exp": 10**400}, "is no time"),
        ({"iat": None}, "without a time iat"),
        ({"iat": NOW + 31}, "not valid yet"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"nbf": None, "iat": [1]}, "without a time iat"),
        ({"nbf": "x"}, "without a time nbf"),
        ({"iss": "https://issuer/"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"iss": ["https://issuer"]}, "another issuer"),
        ({"aud": "other"}, "another audience"),
        ({"aud": ["other", "raylo"]}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"aud": {"raylog": 1}}, "no list of texts"),
        ({"aud": ["raylog", 7]}, "no list of texts"),
        ({"scope": ["a", "a"]}, "repeated scope"),
        ({"scope": [" "]}, "empty or repeated scope"),
        ({"scope": 7}, "no list of texts"),
        ({"subject": None}, "names nobody"),
        ({"subject": ""}, "names nobody"),
        ({"subject": " "}, "names nobody"),
        ({"subject": 7}, "names nobody"),
        ({"subject": "alice\0"}, "control character"),
        ({"subject": "alice\x01"}, "control character"),
        ({"subject": "alice\nbob"}, "control character"),
        ({"subject": "alice\x85"}, "control character"),
        ({"subject": "alice\u2028"}, "control character"),
        ({"subject": "alice\ud800"}, "control character"),
        ({"subject": "a" * (NAME_CHARACTERS_MAX + 1)}, "more than 995 characters"),
    ],
)
def test_claims_that_do_not_count_here_or_now_are_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(AuthenticationError, match=why):
        subject_of_claims(said(**more), RULES, NOW)


@pytest.mark.parametrize(
    "more",
    [
        {"exp": NOW - 29.5},
        {"exp": NOW + 0.5, "iat": NOW + 30, "nbf": NOW + 30},
        {"aud": ["other", "logs"]},
        {"scope": "read write"},
        {"scope": ["read", "write"]},
        {"scope": []},
    ],
)
def test_claims_that_count_name_somebody(more: dict[str, Any]) -> None:
    assert subject_of_claims(said(**more), RULES, NOW).name == "alice"


@pytest.mark.parametrize("name", ["a", "ß ü", "alice@example.com", "a" * NAME_CHARACTERS_MAX, "CN=alice,O=x"])
def test_a_name_is_taken_as_it_is(name: str) -> None:
    assert subject_of_claims(said(subject=name), RULES, NOW).name == name


def test_rules_that_are_not_given_ask_for_nothing_and_claims_may_have_other_names() -> None:
    found = said(iss=None, aud=None, email="a@b", scp="x")
    assert subject_of_claims(found, TokenRules(subject_claim="email"), NOW).name == "a@b"
    with pytest.raises(AuthenticationError, match="claim scp"):
        subject_of_claims(found | {"scp": 7}, TokenRules(scope_claim="scp"), NOW)
    assert subject_of_claims(found | {"scp": 7}, TokenRules(), NOW).name == "alice"


def test_an_unsecured_token_is_another_form_than_a_signed_one() -> None:
    assert unsecured_claims(unsecured(said()))["sub"] == "alice"
    for token in (
        ISSUER.token(said()),
        unsecured(said(), alg="RS256"),
        unsecured(said(), crit=["x"]),
        unsecured(said()) + "e30",
        ISSUER.token(said()).rpartition(".")[0] + ".",
    ):
        with pytest.raises(AuthenticationError):
            unsecured_claims(token)


def test_errors_hold_nothing_of_a_token() -> None:
    for found in (
        {"subject": "hidden-42\n"},
        {"aud": "hidden-42"},
        {"iss": "hidden-42"},
        {"exp": "hidden-42"},
        {"scope": ["hidden-42", "hidden-42"]},
    ):
        with pytest.raises(AuthenticationError) as raised:
            subject_of_claims(said(**found), RULES, NOW)
        assert "hidden" not in str(raised.value)
