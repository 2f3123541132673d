r"""The subject of a certificate as Java writes it: ``X500Principal.getName()``, which is RFC 2253.

Kafka takes a client's principal from this text, and ``ssl.principal.mapping.rules`` match it, so it
has to be the same to the letter::

    Certificate    = SEQUENCE { SEQUENCE { [0] version?, serial, algorithm, issuer, validity, subject, … }, … }
    Name           = SEQUENCE OF SET OF SEQUENCE { OBJECT IDENTIFIER, value }

- The last attribute of the certificate comes first. Attributes of one set are joined by ``+``.
- Nine attributes have a keyword. Any other one is its number, ``=#`` and the value's DER in hex.
- ``, = + < > # ; " \`` have a backslash in front, wherever they stand; so have spaces at either end
  of a value. A NUL is ``\00``. All other characters are themselves.

One kind of value differs: Java takes the bytes of a BMPString for UTF-8, and gets a NUL beside each
letter.

This module reads certificates whose signature the TLS library has checked already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OBJECT_IDENTIFIER: Final = 0x06
_VERSION: Final = 0xA0
_EXTENSIONS: Final = 0xA3
_ALTERNATIVE_NAMES: Final = "2.5.29.17"
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ENCODINGS: Final = {
    0x0C: "utf-8",  # UTF8String
    0x13: "ascii",  # PrintableString
    0x14: "latin-1",  # TeletexString
    0x16: "ascii",  # IA5String
    0x1B: "ascii",  # GeneralString
    0x1E: "utf-16-be",  # BMPString
}
_ESCAPED: Final = ',=+<>#;"\\'


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate in DER. Raises ValueError if it cannot be read."""
    return _name(_fields(certificate)[4][1])


def alternative_names_of(certificate: bytes) -> frozenset[bytes]:
    """The subject's alternative names of a certificate in DER, each as its DER. Raises ValueError."""
    for tag, content in _fields(certificate):
        if tag != _EXTENSIONS:
            continue
        for _, extensions, _ in _elements(content):
            for _, extension, _ in _elements(extensions):
                number, *_, value = _elements(extension)
                if _dotted(number[1]) == _ALTERNATIVE_NAMES:
                    return frozenset(each for _, names, _ in _elements(value[1]) for _, _, each in _elements(names))
    return frozenset()


def _fields(certificate: bytes) -> list[tuple[int, bytes]]:
    """What is signed, without the version."""
    whole = next(_elements(certificate), None)
    signed = next(_elements(whole[1]), None) if whole is not None else None
    fields = [(tag, content) for tag, content, _ in _elements(signed[1])] if signed is not None else []
    if fields and fields[0][0] == _VERSION:
        del fields[0]
    if len(fields) < 5 or fields[4][0] != _SEQUENCE:
        raise ValueError("not a certificate: it has no subject")
    return fields


def _name(content: bytes) -> str:
    sets = [attributes for _, attributes, _ in _elements(content)]
    return ",".join("+".join(_attribute(each) for _, each, _ in _elements(attributes)) for attributes in sets[::-1])


def _attribute(content: bytes) -> str:
    elements = list(_elements(content))
    if len(elements) != 2 or elements[0][0] != _OBJECT_IDENTIFIER:
        raise ValueError("not an attribute of a name")
    number = _dotted(elements[0][1])
    tag, value, encoded = elements[1]
    if number not in _KEYWORDS or tag not in _ENCODINGS:
        return f"{_KEYWORDS.get(number, number)}=#{encoded.hex()}"
    return f"{_KEYWORDS[number]}={_escaped(value.decode(_ENCODINGS[tag]))}"


def _escaped(text: str) -> str:
    written = "".join(f"\\{each}" if each in _ESCAPED else "\\00" if each == "\0" else each for each in text)
    inner = written.strip(" \r")
    if not inner:
        return "".join(f"\\{each}" for each in written)
    start = written.index(inner[0])
    before, after = written[:start], written[start + len(inner) :]
    return "".join(f"\\{each}" for each in before) + inner + "".join(f"\\{each}" for each in after)


def _dotted(content: bytes) -> str:
    numbers: list[int] = []
    value = 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    if not numbers or content[-1] & 0x80:
        raise ValueError("not an object identifier")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _elements(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Each element of DER in ``data``: its tag, its content, and all of its bytes."""
    position = 0
    while position < len(data):
        start, tag = position, data[position]
        if position + 2 > len(data):
            raise ValueError("DER ends within an element")
        length = data[position + 1]
        position += 2
        if length & 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4 or position + count > len(data):
                raise ValueError("DER with a length that cannot be")
            length = int.from_bytes(data[position : position + count], "big")
            position += count
        if position + length > len(data):
            raise ValueError("DER ends within an element")
        yield tag, data[position : position + length], data[start : position + length]
        position += length
