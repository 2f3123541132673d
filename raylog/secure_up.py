"""``raylog up --secure`` and ``raylog.init(secure=True)``: a SASL_SSL listener for each broker, TLS on the
links between the cluster's own processes, an authorizer that lets only the super user ``admin`` do
everything, and what to paste into clients.

With ``--client-certificates`` the listeners are SSL, and ask clients for a certificate of the cluster's own
authority. ``CN=alice`` is then ``User:alice``; any other subject is the whole subject, so it is nobody
whom such a name could mean.

The password is in a file that its owner alone can read. It is in no output, no log and no argument of
a process.
"""

from __future__ import annotations

import datetime
import shlex
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raylog.configs.link_configs import PROTOCOL
from raylog.configs.security_configs import AUTHORIZER, SUPER_USERS
from raylog.configs.server_properties import ServerProperties
from raylog.disks.secure_files import USER, SecureFiles
from raylog.errors import ConfigError, RaylogError
from raylog.extras import need
from raylog.wire.listeners import EVERYWHERE, KAFKA_PORT, listeners_of_brokers

if TYPE_CHECKING:
    from raylog.cluster import Cluster

CLIENTS_MAPPED = r"RULE:^CN=([A-Za-z0-9._-]+)$/$1/,DEFAULT"


def make_secure(
    folder: Path,
    settings: dict[str, Any],
    said: str = "--secure",
    by: str = "raylog up --secure",
    *,
    is_mutual: bool = False,
) -> SecureFiles:
    """The files, which are made if they are missing. ``settings`` of the start, as ``raylog up`` has
    them, get the listeners and the configs of a secure one. Raises ConfigError, in whose words the
    user has ``said`` so, and MissingExtraError. ``is_mutual``: clients show certificates, not passwords.
    """
    told, host, advertised = settings["configs"], settings["host"], settings["advertised_listeners"]
    assert isinstance(told, ServerProperties), "what --config says"
    need("cryptography", by)
    files = SecureFiles(folder.expanduser().resolve() / "security", is_mutual)
    protocol = files.protocol
    if told.listener_configs:
        raise ConfigError(f"{said} makes certificates of its own: leave {min(told.listener_configs)} out, or {said}")
    if told.link_configs is not None:
        raise ConfigError(f"{said} gives links inside TLS by its own certificates: leave {PROTOCOL} out, or {said}")

    texts = list(settings["listeners"] or told.listeners or [f"{protocol}://{host}:{KAFKA_PORT}"])
    for each in (each.strip() for text in texts for each in text.split(",")):
        if not each.upper().startswith(f"{protocol}://"):  # without a map of protocols, a name is its protocol
            raise ConfigError(f"{said} starts {protocol} listeners only: {each} is none")
    ours = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(files.broker)}
    trusted = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(files.authority)}
    asking = {"ssl.client.auth": "required", "ssl.principal.mapping.rules": CLIENTS_MAPPED} if is_mutual else {}
    files.make(
        _hosts(settings["brokers"], texts, advertised or told.advertised_listeners, ours, host),
        datetime.datetime.now(datetime.UTC),
    )
    configs = {AUTHORIZER: "raylog", SUPER_USERS: f"User:{USER}"} | dict(told.configs)
    settings["configs"] = replace(
        told,
        configs=configs,
        listener_configs=ours | trusted | asking if is_mutual else ours,
        link_configs=ours | trusted,
        is_given=True,
    )
    settings["listeners"] = texts
    return files


def _hosts(
    brokers: int, texts: Sequence[str], advertised: Sequence[str] | None, configs: dict[str, str], host: str
) -> list[str]:
    """Names and addresses by which clients may reach the brokers."""
    hosts = {"localhost", "127.0.0.1", "::1", socket.gethostname(), host}
    for each in listeners_of_brokers(brokers, texts, advertised, configs):
        for listener in each.each if each is not None else ():
            hosts.add(listener.bind.host)
            if listener.advertised is not None:
                hosts.add(listener.advertised.host)
    if hosts & set(EVERYWHERE):
        import psutil

        families = (socket.AF_INET, socket.AF_INET6)
        found = (each for addresses in psutil.net_if_addrs().values() for each in addresses)
        hosts |= {each.address.partition("%")[0] for each in found if each.family in families}
    return sorted(hosts - set(EVERYWHERE))


def have_super_user(cluster: Cluster, files: SecureFiles) -> None:
    """The super user has the password of the file, if that user is not there yet."""
    with cluster.admin() as admin:
        if all(each.user != USER for each in admin.describe_users()):
            admin.set_user(USER, files.read_password())


def finish(cluster: Cluster, files: SecureFiles, brokers: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Have the super user, and the file of a client. Returns where everything is, as plain values."""
    if not files.is_mutual:
        have_super_user(cluster, files)
    prefix = f"{files.protocol}://"
    servers = ",".join(
        endpoint.removeprefix(prefix)
        for broker in brokers
        for endpoint in broker["listeners"]
        if endpoint.startswith(prefix)
    )
    if not servers:
        raise RaylogError(f"no broker tells where its {files.protocol} listener is: see `raylog status`")
    files.write_client(servers)
    return {
        "bootstrap_servers": servers,
        "user": USER,
        **(
            {"client_certificate": str(files.client_certificate)}
            if files.is_mutual
            else {"password_file": str(files.password)}
        ),
        "truststore": str(files.authority),
        "client_properties": str(files.client),
    }


def client_texts(security: dict[str, str]) -> dict[str, str]:
    """What to paste, by client."""
    file = security["client_properties"]
    events = f"--topic events --bootstrap-server {security['bootstrap_servers']}"
    java = (
        f"kafka-console-producer.sh {events} --producer.config {shlex.quote(file)}\n"
        f"kafka-console-consumer.sh {events} --consumer.config {shlex.quote(file)} --from-beginning"
    )
    spark = f"""\
from pathlib import Path

options = dict(line.split("=", 1) for line in Path({file!r}).read_text().splitlines())
options = {{f"kafka.{{name}}": value for name, value in options.items()}}
df = spark.read.format("kafka").options(**options).option("subscribe", "events").load()"""
    return {
        "confluent-kafka": _python_text(security),
        "Java": java,
        "Spark": spark,
        "raylog": f"raylog topics list --command-config {shlex.quote(file)}",
    }


def _python_text(security: dict[str, str]) -> str:
    if "client_certificate" in security:  # the file holds the key, too
        return f"""\
from confluent_kafka import Producer

producer = Producer({{
    "bootstrap.servers": "{security["bootstrap_servers"]}",
    "security.protocol": "SSL",
    "ssl.ca.location": {security["truststore"]!r},
    "ssl.certificate.location": {security["client_certificate"]!r},
    "ssl.key.location": {security["client_certificate"]!r},
}})"""
    return f"""\
from pathlib import Path

from confluent_kafka import Producer

producer = Producer({{
    "bootstrap.servers": "{security["bootstrap_servers"]}",
    "security.protocol": "SASL_SSL",
    "ssl.ca.location": {security["truststore"]!r},
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "{security["user"]}",
    "sasl.password": Path({security["password_file"]!r}).read_text().strip(),
}})"""


def lines_of(security: dict[str, str]) -> list[str]:
    """What ``raylog up --secure`` prints."""
    user, authority = security["user"], security["truststore"]
    if "client_certificate" in security:
        lines = [
            f"Secure: SSL with client certificates; the super user {user} has {security['client_certificate']}",
            f"        clients trust {authority}",
            f"        `raylog certificates {Path(authority).parent} --client NAME` and `raylog acls` let others in",
        ]
    else:
        lines = [
            f"Secure: SASL_SSL; the super user {user} has the password in {security['password_file']}",
            f"        clients trust {authority}; `raylog users` and `raylog acls` let others in",
        ]
    for client, text in client_texts(security).items():
        lines += ["", f"# {client}", *text.splitlines()]
    return [*lines, ""]
