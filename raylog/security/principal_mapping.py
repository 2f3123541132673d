"""``ssl.principal.mapping.rules``: from a certificate's distinguished name to a principal's name
(Kafka's SslPrincipalMapper).

::

    rules   = rule *("," rule)
    rule    = "DEFAULT" | "RULE:" pattern "/" replacement "/" ["L" | "U"]

The first rule applies whose pattern matches the whole name. ``DEFAULT`` takes the name as it is. In
a replacement ``$1`` is the first group; L and U write the result in lower or upper case. A ``/``
within a pattern or a replacement has a backslash in front.

A name with a control character or a line separator never gets here: ``.`` matches some of them in
Python and not in Java, and a log or a list of rights would show another name than the one that has
it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from raylog.errors import ConfigError, ProtocolError

RULES: Final = "ssl.principal.mapping.rules"
DEFAULT: Final = "DEFAULT"
_rule = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,\s*|$)")
_group = re.compile(r"\\(.)|\$(\d+)|\\|\$", re.DOTALL)
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    replacement: tuple[str | int, ...]  # texts, and numbers of groups
    case: str

    def apply(self, name: str) -> str | None:
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        found = "".join(part if isinstance(part, str) else match[part] or "" for part in self.replacement)
        return found.lower() if self.case == "L" else found.upper() if self.case == "U" else found


class PrincipalMapping:
    """The parsed rules. Raises ConfigError for a rule that cannot be read."""

    def __init__(self, rules: str = DEFAULT) -> None:
        self._rules: list[_Rule | None] = []  # None: DEFAULT
        position, rules = 0, rules.strip()
        while position < len(rules):
            found = _rule.match(rules, position)
            if found is None:
                raise ConfigError(
                    f"{RULES}: {rules[position:]!r} is no rule: write DEFAULT or RULE:pattern/replacement/[LU]"
                )
            position = found.end()
            self._rules.append(None if found[1] else _parsed(*found.groups()[1:]))

    def name_of(self, distinguished_name: str) -> str:
        """The principal's name. Raises ProtocolError if no rule applies, or the name cannot be a
        principal's.
        """
        if UNPRINTABLE.search(distinguished_name):
            raise ProtocolError(f"a certificate with a control character in its subject ({distinguished_name[:200]!r})")
        for rule in self._rules or [None]:
            name = distinguished_name if rule is None else rule.apply(distinguished_name)
            if name is not None:
                if not name:
                    raise ProtocolError(f"the subject {distinguished_name[:200]!r} gives an empty principal")
                return name
        raise ProtocolError(f"no rule of {RULES} applies to {distinguished_name[:200]!r}")


def _parsed(pattern: str, replacement: str, case: str) -> _Rule:
    try:
        compiled = re.compile(pattern, re.ASCII)  # as in Java
    except re.error as error:
        raise ConfigError(f"{RULES}: {pattern!r} is no regular expression: {error}") from None
    parts: list[str | int] = []
    end = 0
    for found in _group.finditer(replacement):
        parts.append(replacement[end : found.start()])
        end = found.end()
        if found[2] is None:
            parts.append(found[1] or found[0])
            continue
        digits = next((n for n in range(len(found[2]), 0, -1) if int(found[2][:n]) <= compiled.groups), 0)
        parts += [int(found[2][:digits]), found[2][digits:]] if digits else [found[0]]
    parts.append(replacement[end:])
    return _Rule(compiled, tuple(part for part in parts if part != ""), case)
