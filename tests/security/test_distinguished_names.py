"""Subjects of certificates, letter for letter as ``X500Principal.getName()`` of Java 17 writes them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from certificates import Authority, name
from cryptography import x509
from cryptography.x509.oid import NameOID

from raylog.security.distinguished_names import subject_of

CN, O, OU = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME
ONE_SET = x509.RelativeDistinguishedName([x509.NameAttribute(CN, "two"), x509.NameAttribute(OU, "in one")])
AS_JAVA_WRITES_THEM = [
    (
        name((NameOID.COUNTRY_NAME, "DE"), (O, "Acme, Inc."), (OU, "a+b=c"), (CN, "kafka")),
        r"CN=kafka,OU=a\+b\=c,O=Acme\, Inc.,C=DE",
    ),
    (name((CN, " lead and trail  ")), r"CN=\ lead and trail\ \ "),
    (name((CN, "   ")), r"CN=\ \ \ "),
    (name((CN, "a,O=evil")), r"CN=a\,O\=evil"),
    (name((CN, 'q"<>#;\\ x#')), r"CN=q\"\<\>\#\;\\ x\#"),
    (name((CN, "Jürgen 名前")), "CN=Jürgen 名前"),
    (name((CN, "nul\0x")), r"CN=nul\00x"),
    (
        name((NameOID.EMAIL_ADDRESS, "a@b.c"), (CN, "mail"), (NameOID.SERIAL_NUMBER, "7")),
        "2.5.4.5=#130137,CN=mail,1.2.840.113549.1.9.1=#16056140622e63",
    ),
    (
        name((NameOID.DOMAIN_COMPONENT, "com"), (NameOID.USER_ID, "u1"), (NameOID.STATE_OR_PROVINCE_NAME, "st")),
        "ST=st,UID=u1,DC=com",
    ),
    (x509.Name([ONE_SET, x509.RelativeDistinguishedName([x509.NameAttribute(O, "o")])]), "O=o,CN=two+OU=in one"),
]


@pytest.mark.parametrize(("subject", "text"), AS_JAVA_WRITES_THEM, ids=[text for _, text in AS_JAVA_WRITES_THEM])
def test_a_subject_is_written_as_java_writes_it(tmp_path: Path, subject: x509.Name, text: str) -> None:
    assert subject_of(encoded(tmp_path, subject)) == text


def test_what_is_cut_off_is_no_certificate(tmp_path: Path) -> None:
    whole = encoded(tmp_path, name((CN, "a")))
    for end in range(len(whole)):
        with pytest.raises(ValueError):
            subject_of(whole[:end])


def encoded(folder: Path, subject: x509.Name) -> bytes:
    text = Authority(folder).signed("x", subject).read_text()
    return ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERTIFICATE") :])
