"""What ``sasl.jaas.config`` says: ``MODULE required NAME="VALUE" …;``.

A value stands in double quotes, with ``\\`` before a quote or a backslash in it, or is a word. The
errors hold no value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_TOKEN: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|([^\s"=;]+)|(=)|(;)|(\s+)|(.)', re.DOTALL)
_FORM: Final = "it is not MODULE required NAME=VALUE …;"


class JaasError(ValueError):
    """A text that is no such configuration; the message goes behind the option's name."""


@dataclass(frozen=True, slots=True)
class LoginModule:
    name: str
    options: dict[str, str] = field(repr=False)


def login_module(text: str, known: tuple[str, ...]) -> LoginModule:
    """The login module and its options. Raises JaasError, also for a module that is not ``known``."""
    tokens: list[str] = []
    for quoted, word, equals, end, space, other in _TOKEN.findall(text):
        if other:
            raise JaasError(_FORM)
        if not space:
            tokens.append(word or equals or end or re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
    if len(tokens) < 3 or tokens[-1] != ";":
        raise JaasError("it does not end with ;")
    if tokens[0] not in known:
        raise JaasError(f"its login module is none of {', '.join(known)}")
    pairs = tokens[2:-1]
    if len(pairs) % 3 or any(each != "=" for each in pairs[1::3]):
        raise JaasError(_FORM)
    options = dict(zip(pairs[::3], pairs[2::3], strict=True))
    if len(options) * 3 != len(pairs):
        raise JaasError("an option is there twice")
    return LoginModule(tokens[0], options)
