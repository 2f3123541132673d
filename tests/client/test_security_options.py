"""The options of TLS and SASL that ``raylog.connect()`` takes: read into one value, or refused by a line that names them."""

from __future__ import annotations

import asyncio
import datetime
import re
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from raylog.client.security.options import security_of, split
from raylog.errors import ConfigError
from raylog.security.protocols import SecurityProtocol
from raylog.types import Endpoint
from raylog.wire.client_security import ClientSecurity, SaslAuthenticationFailedError, log_in

SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
LOGIN = {"sasl.username": "alice", "sasl.password": "hidden!"}


def read(options: dict[str, Any]) -> ClientSecurity | None:
    others, found = split(options)
    assert not others
    return security_of(found)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def test_without_a_protocol_it_is_plaintext_and_other_options_are_left_alone() -> None:
    assert security_of({}) is None and security_of({"security.protocol": "plaintext"}) is None
    assert split({"client.id": "x", "sasl_mechanism": "PLAIN"}) == ({"client.id": "x"}, {"sasl.mechanism": "PLAIN"})


@pytest.mark.parametrize(
    "written, user, password",
    [
        (f'{SCRAM_MODULE} required username="alice" password="hidden!";', "alice", "hidden!"),
        (f'{SCRAM_MODULE} required \n username=alice\n password="a \\"b\\" \\\\ ; = c" ;', "alice", 'a "b" \\ ; = c'),
    ],
)
def test_the_jaas_config_holds_the_user_and_the_password(written: str, user: str, password: str) -> None:
    found = read(SASL | {"sasl.jaas.config": written})
    assert found is not None and (found.user, found.password) == (user, password)


@pytest.mark.parametrize(
    "names",
    [
        {"sasl_mechanisms": "SCRAM-SHA-512", "sasl.username": "alice", "sasl.password": "hidden!"},
        {"sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": "alice", "sasl_plain_password": "hidden!"},
    ],
)
def test_the_names_of_librdkafka_and_kafka_python_mean_the_same(names: dict[str, str]) -> None:
    assert read({"security_protocol": "SASL_PLAINTEXT"} | names) == read(SASL | LOGIN)


def test_a_certificate_may_be_one_file_two_files_or_texts(authority: Authority, tmp_path: Path) -> None:
    own = authority.signed("client")
    text = own.read_text()
    where = text.index("-----BEGIN CERTIFICATE")
    (tmp_path / "key.pem").write_text(text[:where])
    (tmp_path / "chain.pem").write_text(text[where:])
    common = {"security.protocol": "SSL", "ssl.ca.location": str(authority.certificate)}
    whole = read(common | {"ssl.keystore.location": str(own), "ssl.keystore.type": "PEM"})
    halves = {"ssl.certificate.location": str(tmp_path / "chain.pem"), "ssl.key.location": str(tmp_path / "key.pem")}
    flat = {
        "ssl.keystore.key": text[:where].replace("\n", " "),
        "ssl.keystore.certificate.chain": text[where:].replace("\n", " "),
        "ssl.keystore.type": "PEM",
    }
    assert whole == read(common | halves) == read(common | flat)
    assert whole is not None and whole.protocol is SecurityProtocol.SSL and whole.chain and whole.key and whole.trusted


@pytest.mark.parametrize(
    "options, said",
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS is none of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        (
            {"ssl.ca.location": "x"},
            "ssl.truststore.location needs security.protocol=SSL or SASL_SSL, which is PLAINTEXT",
        ),
        (LOGIN, "sasl.username needs security.protocol=SASL_SSL or SASL_PLAINTEXT, which is PLAINTEXT"),
        (
            {"security.protocol": "SSL"} | LOGIN,
            "sasl.username needs security.protocol=SASL_SSL or SASL_PLAINTEXT, which is SSL",
        ),
        ({"security.protocol": "SASL_SSL"} | LOGIN, "SASL needs sasl.mechanism: set one of SCRAM-SHA-512"),
        (SASL | LOGIN | {"sasl.mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI is not spoken: set one of SCRAM-SHA-512"),
        (SASL | {"sasl.username": "alice"}, "SASL needs sasl.username and sasl.password"),
        (SASL | LOGIN | {"sasl.pasword": "hidden!"}, "a client does not accept sasl.pasword: of security there are"),
        (SASL | LOGIN | {"sasl.plain.password": "hidden!"}, "sasl.password is given twice"),
        (SASL | LOGIN | {"sasl.jaas.config": "x;"}, "sasl.jaas.config excludes sasl.username"),
        (
            SASL | {"sasl.jaas.config": f'{SCRAM_MODULE} required password="hidden!"'},
            "sasl.jaas.config: it does not end with ;",
        ),
        (
            SASL | {"sasl.jaas.config": f'{PLAIN_MODULE} required password="hidden!";'},
            "its login module is not that of sasl.mech",
        ),
        (SASL | {"sasl.jaas.config": "other required a=b;"}, "its login module is none of"),
        (SASL | {"sasl.jaas.config": f'{SCRAM_MODULE} required tokenauth="true";'}, "tokenauth is not supported"),
        (
            SASL | {"sasl.jaas.config": f'{SCRAM_MODULE} required password "hidden!";'},
            "it is not MODULE required NAME=VALUE",
        ),
        (
            {"security.protocol": "SSL", "ssl.truststore.location": "/nowhere.pem"},
            "/nowhere.pem cannot be read: No such file",
        ),
        (
            {"security.protocol": "SSL", "ssl.truststore.password": "hidden!"},
            "ssl.truststore.password: a PEM file has no password",
        ),
        (
            {"security.protocol": "SSL", "ssl.truststore.certificates": "x"},
            "ssl.truststore.certificates does not hold certificates",
        ),
        (
            {"security.protocol": "SSL", "ssl.keystore.key": "hidden!"},
            "ssl.keystore.key: there is no certificate in PEM",
        ),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": "SSLv3"}, "SSLv3 is none of TLSv1.2, TLSv1.3"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "ldap"}, "is neither https nor"),
    ],
)
def test_what_does_not_fit_is_refused_without_showing_a_secret(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(options)
    assert said in str(raised.value)
    assert "hidden!" not in str(raised.value) and "\n" not in str(raised.value)


def test_a_store_that_is_not_pem_is_refused_with_how_to_convert_it(authority: Authority, tmp_path: Path) -> None:
    store = tmp_path / "store.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed")
    for more in ({}, {"ssl.truststore.type": "JKS"}):
        with pytest.raises(ConfigError, match="keytool -importkeystore"):
            read({"security.protocol": "SSL", "ssl.truststore.location": str(store)} | more)


def test_a_key_needs_its_password_and_its_certificate(authority: Authority, tmp_path: Path) -> None:
    locked = {"security.protocol": "SSL", "ssl.keystore.location": str(authority.signed("locked", password="hidden!"))}
    with pytest.raises(ConfigError, match=r"encrypted: set ssl\.key\.password"):
        read(locked)
    with pytest.raises(ConfigError, match=r"ssl\.key\.password does not open the private key"):
        read(locked | {"ssl.key.password": "wrong"})
    assert read(locked | {"ssl.key.password": "hidden!"}) is not None
    one, two = authority.signed("one").read_text(), authority.signed("two").read_text()
    mixed = tmp_path / "mixed.pem"
    mixed.write_text(one[: one.index("-----BEGIN CERT")] + two[two.index("-----BEGIN CERT") :])
    with pytest.raises(ConfigError, match="not that of the certificate"):
        read({"security.protocol": "SSL", "ssl.keystore.location": str(mixed)})


def test_a_server_that_does_not_prove_that_it_knows_the_user_is_not_trusted() -> None:
    security = read(SASL | LOGIN)
    assert security is not None

    async def meet(impostor: str) -> None:
        async def answer(request: Any) -> Any:
            key = int(request.__api_key__)
            response = load_response_schema(key, int(request.__version__))
            if key == 17:
                return response(error_code=ErrorCode.none, mechanisms=("SCRAM-SHA-512",))
            found = re.search(rb"^n,,n=alice,r=(.+)$", request.auth_bytes)
            token = b"r=%b+,s=YQ==,i=4096" % found[1] if found else impostor.encode()
            lifetime = datetime.timedelta(0)
            return response(error_code=ErrorCode.none, error_message=None, auth_bytes=token, session_lifetime=lifetime)

        await log_in(Endpoint("a", 1), security, lambda request: asyncio.ensure_future(answer(request)))

    for final in ("v=" + b64encode(b"0" * 64).decode(), "", "e=other-error"):
        with pytest.raises(SaslAuthenticationFailedError, match="SASL with a:1 failed: the server"):
            asyncio.run(meet(final))
