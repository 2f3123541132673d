"""A cluster with an authorizer, and an anonymous client of one of its listeners whose ACLs a test chooses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from acl_cases import GROUP, TOPIC, TRANSACTION
from first_leaders import preferred_leaders_are_awaited
from outside import Client, request
from raw_requests import ask, eventually

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.security.acl import AclBinding
from raylog.server.start_configs import set_static
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import BROKER_SLOT, node_id
from raylog.wire.listeners import Listeners

AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
EVERYTHING = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def creation(module: Any, acl: AclBinding) -> Any:
    return module.AclCreation(
        resource_type=acl.resource.value,
        resource_name=acl.name,
        resource_pattern_type=acl.pattern.value,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation.value,
        permission_type=acl.permission.value,
    )


class Clients:
    """``ask`` is the anonymous client's."""

    def __init__(self, running: InProcessCluster) -> None:
        self.running = running
        self.topic_id = running.controller._controller.image.topic_ids[TOPIC]
        self._granted: set[AclBinding] = set()
        self._client = Client(running, 0)

    def image(self, broker: int = 0) -> Any:
        return self.running.launcher.servers[node_id(broker, BROKER_SLOT)].image

    def grant(self, *acls: AclBinding) -> None:
        """Have these ACLs and no others."""
        wanted = set(acls)
        if wanted == self._granted:
            return
        endpoint = self.running.controller._endpoint
        ask(
            self.running,
            endpoint,
            request(31, 3, filters=lambda module: (module.DeleteAclsFilter(**EVERYTHING),)),
        )
        if wanted:
            reply = ask(
                self.running,
                endpoint,
                request(30, 3, creations=lambda module: tuple(creation(module, each) for each in sorted(wanted))),
            )
            assert not any(each.error_code for each in reply.results), reply
        self._granted = wanted
        eventually(lambda: set(self.image().acls.ids) == wanted, "the Broker knows the ACLs")

    def ask(self, entity: Any) -> Any:
        if self._client.connection.is_open is False:
            self._client = Client(self.running, 0)
        return self._client.ask(entity)

    def close(self) -> None:
        self._client.close()


def set_configs(running: InProcessCluster, **configs: str) -> None:
    """What the cluster is started with."""
    set_static(
        running.address,
        {**AUTHORIZER, **{name.replace("_", "."): value for name, value in configs.items()}},
        timeout_s=30,
    )


@contextmanager
def authorized_cluster(brokers: int = 1, listeners: Listeners | None = None) -> Iterator[Clients]:
    """It has one topic, and coordinators of groups and transactions; nobody has an ACL."""
    with preferred_leaders_are_awaited(), cluster(brokers=brokers, listeners=listeners) as running:
        with AdminClient(running.address) as admin:
            admin.create_topics([NewTopic(TOPIC, replica_assignment={0: (0,)})])
        first = Client(running, 0)
        for number, key in enumerate((GROUP, TRANSACTION)):
            asked = request(10, 4, key_type=number, coordinator_keys=(key,))
            eventually(lambda asked=asked: not first.ask(asked).coordinators[0].error_code, f"{key} has a coordinator")
        first.close()
        set_configs(running)
        clients = Clients(running)
        eventually(
            lambda: all(
                clients.image(each).broker_configs.get(None, {}).get("authorizer.class.name") for each in range(brokers)
            ),
            "all Brokers know of the authorizer",
        )
        try:
            yield clients
        finally:
            clients.close()
