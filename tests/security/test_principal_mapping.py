"""``ssl.principal.mapping.rules``, with the answers of Kafka 3.9.1's SslPrincipalMapper."""

from __future__ import annotations

import pytest

from raylog.errors import ConfigError, ProtocolError
from raylog.security.principal_mapping import PrincipalMapping

MANUALS = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U,RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U,DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "subject", "principal"),
    [
        (MANUALS, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (MANUALS, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (MANUALS, "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        (MANUALS, "O=x,CN=ab.c,C=US", "AB.C"),
        (MANUALS, "O=x", "O=x"),
        ("", "CN=a,O=b", "CN=a,O=b"),
        ("RULE:^CN=(.*?)$/$2x/", "CN=a", "$2x"),
        ("RULE:^CN=(.*?)$/$12/", "CN=a", "a2"),
        (r"RULE:^CN=(.*?)$/\$1/", "CN=a", "$1"),
        (r"RULE:^CN=(.*?)$/a\/b$1/", "CN=a", "a/ba"),
        (r"RULE:^CN=(.*?)\/x$/$1/", "CN=a/x", "a"),
        (r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/,DEFAULT", r"CN=a\,b,O=x", r"a\,b"),
        (r"RULE:^CN=(\w+)$/$1/,DEFAULT", "CN=ä", "CN=ä"),
        ("RULE:^CN=(.*?)$/$1/,", "CN=a", "a"),
    ],
)
def test_a_principal_is_what_kafka_makes_of_the_subject(rules: str, subject: str, principal: str) -> None:
    assert PrincipalMapping(rules).name_of(subject) == principal


@pytest.mark.parametrize(
    "rules",
    [
        "RULE:^CN=(.*?)/$1/X",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1",
        "default",
        "DEFAULT/L",
        "RULE:CN/",
        "RULE:^CN=(.*?)$/$1/l",
        "RULE:[/x/",
        "RULE:^CN=(.*?)$/$1/ RULE:^O=(.*)$/$1/",
    ],
)
def test_a_rule_that_kafka_refuses_is_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalMapping(rules)


@pytest.mark.parametrize(
    ("rules", "subject"),
    [
        ("RULE:^CN=(.*?)$/$1/", "O=a"),
        ("RULE:^CN=(.*)$/$1/", "CN="),
        ("DEFAULT", ""),
        ("DEFAULT", "CN=admin\nUser:b"),
        ("DEFAULT", "CN=admin\u2028"),
        ("RULE:^CN=(.*).$/$1/", "CN=admin\x85"),
    ],
)
def test_a_subject_that_is_nobodys_is_refused(rules: str, subject: str) -> None:
    with pytest.raises(ProtocolError):
        PrincipalMapping(rules).name_of(subject)


def test_a_comma_in_a_name_ends_no_attribute() -> None:
    """Somebody called "admin,OU=ServiceUsers" is not the admin of the service users."""
    rules = "RULE:^CN=([a-z]*),OU=ServiceUsers$/$1/,DEFAULT"
    assert PrincipalMapping(rules).name_of("CN=admin,OU=ServiceUsers") == "admin"
    assert PrincipalMapping(rules).name_of(r"CN=admin\,OU\=ServiceUsers") == r"CN=admin\,OU\=ServiceUsers"
