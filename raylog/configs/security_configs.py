"""The configs of authorisation, under Kafka's names. A start takes them; nobody can change them
while brokers run, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping

from raylog.configs.broker_config import BrokerConfig, ReadBy
from raylog.configs.topic_configs import ConfigValueType
from raylog.errors import ConfigError
from raylog.security.authorizer import parse_super_users

AUTHORIZER = "authorizer.class.name"
SUPER_USERS = "super.users"
ALLOW_EVERYONE = "allow.everyone.if.no.acl.found"
AUTHORIZERS = ("", "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "raylog")

SECURITY_CONFIGS = (
    BrokerConfig(AUTHORIZER, ConfigValueType.STRING, "",
                 "the authorizer; both names mean raylog's own, and empty means that everybody may do everything",
                 choices=AUTHORIZERS, read_by=ReadBy.HOSTS, is_cluster_wide=True, is_static=True),
    BrokerConfig(SUPER_USERS, ConfigValueType.STRING, "",
                 "principals that may do everything, such as User:alice, with semicolons between them",
                 read_by=ReadBy.LISTENER, is_cluster_wide=True, is_static=True),
    BrokerConfig(ALLOW_EVERYONE, ConfigValueType.BOOLEAN, "false",
                 "whether everybody may do everything to a resource that no ACL applies to",
                 read_by=ReadBy.LISTENER, is_cluster_wide=True, is_static=True),
)  # fmt: skip


def authorizer_of(configs: Mapping[int | None, Mapping[str, str]]) -> tuple[frozenset[str], bool] | None:
    """The super users, and whether everybody may do what no ACL is about; None if there is no
    authorizer. ``configs`` are brokers' values in force.
    """
    said = configs.get(None, {})
    if not said.get(AUTHORIZER):
        return None
    return parse_super_users(said.get(SUPER_USERS, "")), said.get(ALLOW_EVERYONE, "").lower() == "true"


def check_security(configs: Mapping[str, str]) -> None:
    """Raises ConfigError for super users that are no principals, or that no authorizer asks about."""
    parse_super_users(configs.get(SUPER_USERS, ""))
    if configs.get(AUTHORIZER):
        return
    for name in (SUPER_USERS, ALLOW_EVERYONE):
        if configs.get(name, "").lower() not in ("", "false"):
            raise ConfigError(f"{name}={configs[name]} has no effect without an authorizer: set {AUTHORIZER}, too")
