"""Users of PLAIN that a listener's settings name: what a JAAS configuration says, who gets in, and that nothing is shown."""

from __future__ import annotations

import pytest

from raylog.security.jaas import JaasError
from raylog.security.plain_users import PlainUsers
from raylog.security.sasl import AuthenticationError

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
KAFKAS_OWN = f"""{MODULE}
    username="admin"
    password="admin-secret"
    user_admin="admin-secret"
    user_alice="alice-secret";"""
"""The example of Kafka's documentation."""


def message(user: str, password: str, authzid: str = "") -> bytes:
    return "\0".join((authzid, user, password)).encode()


def test_the_example_of_kafkas_documentation_counts_as_it_is() -> None:
    users = PlainUsers.of(KAFKAS_OWN)
    assert sorted(users.names) == ["admin", "alice"]
    assert users.log_in(message("alice", "alice-secret")).user == "alice"
    assert users.log_in(message("alice", "alice-secret", "alice")).user == "alice"


def test_names_and_passwords_may_have_what_a_text_can() -> None:
    users = PlainUsers.of(MODULE + ' user_a.b-c="q\\"uote=;\\\\ ß" user_plain=word;')
    assert users.log_in(message("a.b-c", 'q"uote=;\\ ß')).user == "a.b-c"
    assert users.log_in(message("plain", "word")).user == "plain"


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (message("alice", "wrong"), "a wrong password of user 'alice'"),
        (message("alice", "alice-secret "), "a wrong password of user 'alice'"),
        (message("nobody", "alice-secret"), "no such user"),
        (message("admin", ""), "no name or no password"),
        (message("alice", "alice-secret", "admin"), "another user's rights"),
        (b"alice", "not PLAIN's"),
    ],
)
def test_others_do_not_get_in(token: bytes, why: str) -> None:
    with pytest.raises(AuthenticationError, match=why):
        PlainUsers.of(KAFKAS_OWN).log_in(token)


def test_who_connects_kafkas_brokers_is_no_user() -> None:
    users = PlainUsers.of(f'{MODULE} username="broker" password="hidden-42" user_alice="a";')
    with pytest.raises(AuthenticationError, match="no such user"):
        users.log_in(message("broker", "hidden-42"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f'{MODULE} user_alice="hidden-42"', "does not end with ;"),
        (f'{MODULE} username="a" password="hidden-42";', "names no user"),
        (f'{MODULE} alice="hidden-42";', "alice is not supported"),
        (f'{MODULE} user_="hidden-42";', "a user's name has"),
        (f'{MODULE} user_alice="";', "user_alice has no password"),
        (f'{MODULE} user_alice="hidden-42" user_alice="b";', "twice"),
        (f'{MODULE} user_alice "hidden-42";', "it is not MODULE required"),
        ('org.example.Module required user_alice="hidden-42";', "its login module is none of"),
        ("hidden-42", "does not end with ;"),
    ],
)
def test_what_is_no_such_configuration_is_refused_without_its_values(text: str, why: str) -> None:
    with pytest.raises(JaasError) as raised:
        PlainUsers.of(text)
    assert why in str(raised.value) and "hidden-42" not in str(raised.value)


def test_nothing_shows_a_password_and_equal_ones_are_equal() -> None:
    users = PlainUsers({"alice": "hidden-42"})
    done = users.log_in(message("alice", "hidden-42"))
    assert repr(users) == "<1 users of PLAIN>"
    assert "hidden-42" not in repr(done) and "password_hash" not in repr(done)
    assert users == PlainUsers({"alice": "hidden-42"}) != PlainUsers({"alice": "another"})
