"""The provisioner of a cluster whose brokers are Ray nodes: makes brokers of the disks that nodes
bring, and controllers that run.

It looks at Ray's nodes round by round and is never needed by anybody who reads or writes. A round
compares what the nodes offer with what is so, and does what is missing; each step is idempotent,
and what the provisioner remembers it could find out again, so it may die anywhere.

====================================  =====================================================================================
it sees                               it
====================================  =====================================================================================
blank disks only, fewer than expected waits
blank disks only, all that are        founds a cluster: a new id and secret, a broker per node, metadata on the first voters' disks
expected
a formatted disk                      knows the cluster; disks of two clusters are refused; formats what its founding promised
disks with metadata                   starts their controllers, and writes where they listen to every disk
a formatted disk that it has not      sets the brokers' configs that it brings and nobody has set; registers it with the
registered                            active controller, which starts its Broker and replicas
disks with TLS on links inside, and   leaves those out that are not like most of the cluster's
others without
a blank disk, an active controller    formats it for the cluster (the broker of its node, the one whose disk it replaces, or the next
                                      free id) and registers it
a voter's disk that no node offers,   starts a controller on that one: the active controller admits it in the lost one's place
but another disk of its broker
a plan of controllers, in the quorum  keeps those running that vote, or whose brokers are planned, and lets the others go; who is
                                      planned and has none yet is the active controller's business
====================================  =====================================================================================

Only a disk's own node sees its folder: all work in folders is done there, by ``Nodes``. Ids of
brokers that are away are known to the active controller only, so no disk joins without one. Knows
nothing of Ray.
"""

from __future__ import annotations

import logging
import secrets
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from raylog.client.links.address import ClusterAddress
from raylog.disks.disk import Disk, Reservation, decode_id, encode_id, new_id
from raylog.errors import ClusterError, RaylogError
from raylog.metadata.records import StaticSource
from raylog.placement.founding import (
    JoinedDisk,
    KnownBroker,
    assign_brokers,
    cluster_of,
    found,
    rack_of,
    unlike_links,
)
from raylog.server.disk_work import FolderFound
from raylog.server.start_configs import agreed
from raylog.types import CONTROLLER_COUNTS, Endpoint
from raylog.wire.internal_tls import Secret, SecretInsideTls

logger = logging.getLogger("raylog.provisioner")

CONTROLLERS_MAX = max(CONTROLLER_COUNTS)
LOOK_AGAIN_ROUNDS = 10  # until a folder that could not be used is looked at again


@dataclass(frozen=True, slots=True)
class FormatOrder:
    """A blank disk is to become what ``reservation`` says."""

    joined: JoinedDisk
    reservation: Reservation
    secret: str
    controllers: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class QuorumSeen:
    """What the active controller says of the quorum: the voters and their brokers, where they
    listen if that is known, those that it does not reach, and the brokers of the plan, if there is
    one.
    """

    voters: Mapping[uuid.UUID, int]
    endpoints: Mapping[uuid.UUID, Endpoint]
    lost: frozenset[uuid.UUID] = frozenset()
    planned: tuple[int, ...] = ()


class Nodes(Protocol):
    """What nodes and controllers do for the provisioner. Answers are by directory id; an exception
    says what went wrong there.
    """

    def offered(self) -> Mapping[uuid.UUID, JoinedDisk]:
        """The disks that live nodes say they have, with nothing known of their folders."""
        ...

    def look(self, disks: Sequence[JoinedDisk]) -> Mapping[uuid.UUID, FolderFound | Exception]: ...

    def promise(
        self, orders: Sequence[FormatOrder], voters: Sequence[uuid.UUID]
    ) -> Mapping[uuid.UUID, Reservation | Exception]: ...

    def format(self, orders: Sequence[FormatOrder]) -> Mapping[uuid.UUID, FolderFound | Exception]: ...

    def tell(
        self, disks: Sequence[JoinedDisk], controllers: Sequence[Endpoint]
    ) -> Mapping[uuid.UUID, Disk | Exception]: ...

    def run_controllers(self, homes: Sequence[JoinedDisk]) -> Mapping[uuid.UUID, Endpoint | Exception]:
        """Start those that do not run, and say where they listen; those that are still starting are
        left out.
        """
        ...

    def known_brokers(self, address: ClusterAddress) -> Sequence[KnownBroker]:
        """All registered brokers, live or not, as the active controller knows them."""
        ...

    def quorum(self, address: ClusterAddress) -> QuorumSeen | None:
        """What the active controller says; None if none of those at that address is active."""
        ...

    def plan_controllers(self, address: ClusterAddress, count: int) -> None:
        """Have the active controller plan so many controllers."""
        ...

    def configure(
        self, address: ClusterAddress, source: StaticSource, configs: Mapping[str, str], *, replaces: bool
    ) -> None:
        """Have ``configs`` be static configs of all brokers; ``replaces``: the only ones of that
        source.
        """
        ...

    def register(self, address: ClusterAddress, disks: Sequence[JoinedDisk]) -> None: ...


class Provisioner:
    """``round`` does what is missing now; ``status`` says how things stand. Safe to call from two
    threads.
    """

    def __init__(
        self,
        nodes: Nodes,
        *,
        expected: int,
        controllers: int | None = None,
        on_cluster: Callable[[str], None] = lambda cluster_id: None,
    ) -> None:
        """``on_cluster`` is called once with the id of the cluster, as soon as it is known."""
        self._nodes = nodes
        self._on_cluster = on_cluster
        self._cluster_id: str | None = None
        self._expected = expected
        self._wanted_controllers = controllers
        self._ordered: Mapping[str, str] | None = None  # static configs that a start said; None: nothing new
        self._ordered_controllers: int | None = None  # how many a start wants; None: as it is
        self._seen: QuorumSeen | None = None  # the last time that a controller was active
        self._joined: dict[uuid.UUID, JoinedDisk] = {}
        self._successors: set[uuid.UUID] = set()  # disks that get a controller in the place of a lost one
        self._endpoints: dict[uuid.UUID, Endpoint] = {}  # of controllers, by the directory ids of their disks
        self._stale: set[Endpoint] = set()  # where controllers listened before they moved
        self._registered: dict[uuid.UUID, JoinedDisk] = {}
        self._trouble: dict[uuid.UUID, str] = {}  # folders that cannot be used
        self._rests: dict[uuid.UUID, int] = {}  # rounds until such a folder is looked at again
        self._missing: str | None = None
        self._has_looked = False  # one round has ended
        self._asks_again = False  # no controller took what is proven on links: nodes may have other certificates now
        self._working = threading.Lock()
        self._stopped = False

    def expect(self, expected: int, controllers: int | None, configs: Mapping[str, str] | None = None) -> None:
        """How many disks a new cluster is to have; how many controllers, and which static configs,
        any is to have, None as it has them.
        """
        self._expected = expected
        self._wanted_controllers = self._ordered_controllers = controllers
        if configs is not None:
            self._ordered = dict(configs)

    def stop(self, directory_ids: Collection[uuid.UUID]) -> bool:
        """If these are disks of its cluster: no further round does anything. Waits for the one that
        is under way.
        """
        if not self._joined.keys() & set(directory_ids):
            return False
        self._stopped = True
        with self._working:
            return True

    def status(self) -> dict[str, Any]:
        """``missing`` is None when every disk that is here serves the cluster. Plain values."""
        joined = sorted(
            self._joined.values(), key=lambda each: (each.disk.broker_id if each.disk else 1 << 20, each.host)
        )
        clusters = {each.disk.cluster_id for each in joined if each.disk is not None}
        return {
            "cluster_id": next(iter(clusters)) if len(clusters) == 1 else None,
            "expected": self._expected,
            "controllers": [str(each) for each in self._endpoints.values()],
            "disks": [
                {
                    "directory_id": encode_id(each.directory_id),
                    "host": each.host,
                    "path": str(each.path),
                    "broker": each.disk.broker_id if each.disk is not None else None,
                    "registered": each.directory_id in self._registered,
                }
                for each in joined
            ],
            "missing": self._what_is_missing(),
        }

    def _what_is_missing(self) -> str | None:
        if not self._has_looked:
            return self._not_looked_yet()
        unset = None if self._ordered is None else f"{', '.join(sorted(self._ordered)) or 'no configs'}: not set yet"
        count = self._ordered_controllers
        return self._missing or unset or (f"{count} controllers are not planned yet" if count is not None else None)

    def _not_looked_yet(self) -> str:
        expected = max(self._expected, len(self._joined))  # a cluster that is there may have more than were asked for
        return f"{len(self._joined)} of {expected} disks have joined: the nodes are being looked at"

    # ------------------------------------------------------------------ a round

    def round(self) -> None:
        """Do what can be done now. Raises nothing of raylog's: what is missing is in ``status``."""
        with self._working:
            if self._stopped:
                return
            missing: str | None
            try:
                missing = self._work()
            except RaylogError as error:
                missing = str(error)
            troubles = [self._trouble[each] for each in sorted(self._trouble)]
            text = "; ".join([*troubles, *([missing] if missing else [])]) or None
            if text != self._missing or not self._has_looked:
                logger.log(logging.INFO if text is None else logging.WARNING, "%s", text or "every disk serves")
            self._missing, self._has_looked = text, True

    def _work(self) -> str | None:
        """What is missing still, for a person."""
        self._look()
        joined = list(self._joined.values())
        cluster_id = cluster_of(joined)
        if cluster_id is None:
            if len(joined) < self._expected or self._trouble:
                return (
                    f"{len(joined)} of {self._expected} disks have joined, all blank: the cluster is made when all have"
                )
            cluster_id = self._found(joined)
        if cluster_id != self._cluster_id:
            self._cluster_id = cluster_id
            self._on_cluster(cluster_id)
        promised = [each for each in self._joined.values() if each.is_promised_to(cluster_id)]
        if promised:
            secret = self._secret()
            self._format([FormatOrder(each, each.reservation, secret) for each in promised if each.reservation])
        self._look_at_quorum(cluster_id)
        homes = self._homes()
        if not homes:
            return f"no disk that holds the metadata of cluster {cluster_id} has joined"
        troubles = self._run_controllers(homes)
        if not self._endpoints:
            return "; ".join(troubles) or "the controllers are starting"
        troubles += self._tell_controllers()
        if self._seen is None:
            self._look_at_quorum(cluster_id)
        address = self._address(cluster_id)
        self._register(address)
        blank = [each for each in self._joined.values() if each.disk is None]
        if blank:
            troubles += self._take_in(blank, address)
        self._replace_voters()
        self._plan_controllers(address)
        return "; ".join(troubles) or None

    def _homes(self) -> list[JoinedDisk]:
        """The disks whose controllers are to run."""
        holders = [each for each in self._joined.values() if each.has_metadata or each.directory_id in self._successors]
        seen = self._seen
        if seen is None or not seen.planned:
            return holders
        voting = [each for each in self._joined.values() if each.directory_id in seen.voters and each.disk is not None]
        return voting + [each for each in holders if each not in voting and _broker_id(each) in seen.planned]

    def _address(self, cluster_id: str) -> ClusterAddress:
        return ClusterAddress("raylog", "raylog", cluster_id, self._controllers(), self._proof())

    def _look_at_quorum(self, cluster_id: str) -> None:
        """Controllers that were here and are wanted no more are forgotten."""
        if not self._endpoints:
            return
        seen = self._nodes.quorum(self._address(cluster_id))
        self._asks_again = seen is None and isinstance(self._proof(), SecretInsideTls)
        self._seen = seen or self._seen
        if self._seen is not None and self._seen.planned:
            self._successors -= {each for each in self._successors if self._is_unplanned(each)}
            homes = {each.directory_id for each in self._homes()}
            for gone in (self._endpoints.keys() & self._joined.keys()) - homes:
                self._stale.add(self._endpoints.pop(gone))

    def _is_unplanned(self, directory_id: uuid.UUID) -> bool:
        joined = self._joined.get(directory_id)
        assert self._seen is not None, "a plan was seen"
        return joined is not None and joined.disk is not None and joined.disk.broker_id not in self._seen.planned

    def _plan_controllers(self, address: ClusterAddress) -> None:
        """As many as a start wants, unless there are or shall be."""
        count, seen = self._ordered_controllers, self._seen
        if count is None or seen is None:
            return
        if count != len(seen.planned or seen.voters):
            self._nodes.plan_controllers(address, count)
        if self._ordered_controllers == count:  # and nobody has said another one meanwhile
            self._ordered_controllers = None

    def _replace_voters(self) -> None:
        """See to it that from the next round on a controller runs where a voter's disk is gone and
        its broker has another one.
        """
        for lost in sorted(self._seen.lost) if self._seen is not None else ():
            assert self._seen is not None, "it has lost voters"
            broker_id = self._seen.voters[lost]
            if lost in self._joined or broker_id in {_broker_id(each) for each in self._homes()}:
                continue
            if self._seen.planned and broker_id not in self._seen.planned:
                continue
            others = sorted(
                each.directory_id
                for each in self._joined.values()
                if each.disk is not None and each.disk.broker_id == broker_id
            )
            if others:
                logger.warning("the disk %s of a controller is gone, %s of its broker takes its place", lost, others[0])
                self._successors.add(others[0])

    def _look(self) -> None:
        offered = self._nodes.offered()
        known: dict[uuid.UUID, Any]
        for known in (self._joined, self._trouble, self._rests):
            for gone in [each for each in known if each not in offered]:
                del known[gone]
        fresh = []
        for directory_id, offer in sorted(offered.items()):
            joined = self._joined.get(directory_id)
            is_known = joined is not None and (joined.node, joined.path) == (offer.node, offer.path)
            if is_known and not self._asks_again:
                continue
            self._joined.pop(directory_id, None)
            if self._rests.get(directory_id, 0) > 0:
                self._rests[directory_id] -= 1
            else:
                fresh.append(offer)
        for directory_id, answer in self._nodes.look(fresh).items() if fresh else ():
            offer = offered[directory_id]
            if isinstance(answer, Exception):
                self._trouble[directory_id] = f"{offer.path} on {offer.host} can't be used: {answer}"
                self._rests[directory_id] = LOOK_AGAIN_ROUNDS
                continue
            self._trouble.pop(directory_id, None)
            self._joined[directory_id] = _found_there(offer, answer)
        self._asks_again = False
        for directory_id, reason in unlike_links(self._joined.values()).items():
            self._trouble[directory_id] = reason
            self._rests[directory_id] = LOOK_AGAIN_ROUNDS
            del self._joined[directory_id]

    def _found(self, joined: list[JoinedDisk]) -> str:
        agreed((str(each.path), dict(each.reservation.configs)) for each in joined if each.reservation is not None)
        founding = found(joined, self._wanted_controllers)
        cluster_id, secret = encode_id(new_id()), secrets.token_urlsafe(32)
        orders = [
            FormatOrder(each, _reservation(each, cluster_id, founding.broker_ids[each.directory_id], joined), secret)
            for each in joined
        ]
        answers = self._nodes.promise(orders, founding.voters)
        _all_done(answers)
        for directory_id, answer in answers.items():
            if isinstance(answer, Reservation):
                self._joined[directory_id] = replace(self._joined[directory_id], reservation=answer)
        logger.info("cluster %s is made of %d disks", cluster_id, len(joined))
        self._format(orders)
        return cluster_id

    def _take_in(self, blank: list[JoinedDisk], address: ClusterAddress) -> list[str]:
        """Make blank disks the cluster's; what is too early for that."""
        joined = list(self._joined.values())
        broker_ids = assign_brokers(joined, known=self._nodes.known_brokers(address))
        self._format(
            [
                FormatOrder(
                    each,
                    _reservation(each, address.cluster_id, broker_ids[each.directory_id], joined),
                    self._secret(),
                    address.bootstrap,
                )
                for each in blank
                if each.directory_id in broker_ids
            ]
        )
        self._register(address)
        return [
            f"{each.path} on {each.host} waits until the broker that was there before is known to have ended"
            for each in blank
            if each.directory_id not in broker_ids
        ]

    def _format(self, orders: Sequence[FormatOrder]) -> None:
        answers = self._nodes.format(orders)
        for directory_id, answer in answers.items():
            if not isinstance(answer, Exception):
                self._joined[directory_id] = _found_there(self._joined[directory_id], answer)
        _all_done(answers)

    def _run_controllers(self, homes: list[JoinedDisk]) -> list[str]:
        """What went wrong."""
        answers = self._nodes.run_controllers(homes)
        failed = []
        for home in sorted(homes, key=lambda each: _broker_id(each)):
            answer = answers.get(home.directory_id)
            if isinstance(answer, Exception):
                failed.append(f"the controller on {home.path} of {home.host} does not start: {answer}")
            elif answer is not None:
                assert home.disk is not None, home
                before = {self._endpoints.get(home.directory_id), home.disk.controller_endpoint} - {None, answer}
                self._stale |= {each for each in before if each is not None}
                self._stale.discard(answer)
                self._endpoints[home.directory_id] = answer
        return failed

    def _controllers(self) -> tuple[Endpoint, ...]:
        """Those that run, by broker id, and where those of absent nodes were last heard of."""
        here = sorted(
            (_broker_id(self._joined[each]), at) for each, at in self._endpoints.items() if each in self._joined
        )
        endpoints = [at for _, at in here]
        noted = [at for each in self._joined.values() if each.disk is not None for at in each.disk.controllers]
        away = [at for each, at in self._endpoints.items() if each not in self._joined]
        count_max = CONTROLLERS_MAX
        if self._seen is not None:
            away += [at for each, at in self._seen.endpoints.items() if each not in self._joined]
            count_max = max(len(self._seen.voters), len(endpoints))
        for at in [*away, *sorted(noted, key=str)]:
            if len(endpoints) < count_max and at not in endpoints and at not in self._stale:
                endpoints.append(at)
        return tuple(endpoints)

    def _tell_controllers(self) -> list[str]:
        """What went wrong."""
        controllers = self._controllers()
        stale = [
            each for each in self._joined.values() if each.disk is not None and each.disk.controllers != controllers
        ]
        failed = []
        for directory_id, answer in self._nodes.tell(stale, controllers).items() if stale else ():
            joined = self._joined[directory_id]
            if isinstance(answer, Exception):
                failed.append(f"{joined.path} of {joined.host} is not told where the controllers are: {answer}")
            else:
                self._joined[directory_id] = replace(joined, disk=answer)
        return failed

    def _secret(self) -> str:
        return self._disk().secret

    def _proof(self) -> Secret:
        """What is proven on the cluster's links."""
        return next(each.proof for each in self._joined.values() if each.proof is not None)

    def _disk(self) -> Disk:
        """One of the cluster's."""
        return next(each.disk for each in self._joined.values() if each.disk is not None)

    def _register(self, address: ClusterAddress) -> None:
        fresh = [
            each
            for each in self._joined.values()
            if each.disk is not None and _as_registered(each) != self._registered.get(each.directory_id)
        ]
        self._configure(address, fresh)
        if fresh:
            self._nodes.register(address, sorted(fresh, key=_broker_id))
            self._registered.update({each.directory_id: _as_registered(each) for each in fresh})

    def _configure(self, address: ClusterAddress, fresh: Sequence[JoinedDisk]) -> None:
        """Make static what all disks here say, if one of them is fresh, and what a start said; before
        the disks serve.
        """
        if fresh:
            said: dict[str, str] = {}
            for each in sorted(self._joined.values(), key=lambda each: each.disk.broker_id if each.disk else -1):
                for name, value in each.disk.configs if each.disk is not None else ():
                    if said.setdefault(name, value) != value:
                        logger.warning("%s of %s does not count: another disk says otherwise", name, each.path)
            are_all_here = len(self._joined) >= self._expected
            self._nodes.configure(address, StaticSource.NODES, said, replaces=are_all_here)
        ordered, self._ordered = self._ordered, None  # more may be ordered meanwhile
        if ordered is not None:
            try:
                self._nodes.configure(address, StaticSource.START, ordered, replaces=True)
            except RaylogError:
                self._ordered = ordered if self._ordered is None else self._ordered
                raise


def find_quorum(
    ask: Callable[[Endpoint], Mapping[str, Any] | None], known: Sequence[Endpoint]
) -> Mapping[str, Any] | None:
    """What the active controller says of the quorum; None if none is found. The others that answer
    say where it may be: a controller that is known here may have become one of those that are not.
    """
    told = list(known)
    for endpoint in told:  # which grows meanwhile
        quorum = ask(endpoint)
        if quorum is None:
            continue
        if quorum["told_by"]["is_active"]:
            return quorum
        others = (Endpoint.of(each["endpoint"]) for each in quorum["voters"] if each["endpoint"] is not None)
        told += [each for each in others if each not in told]
    return None


def quorum_seen(quorum: Mapping[str, Any]) -> QuorumSeen:
    """Out of what a controller says of the quorum (``controller_status.quorum_status``)."""
    voters = {decode_id(each["directory_id"]): each for each in quorum["voters"]}
    return QuorumSeen(
        {voter: each["broker"] for voter, each in voters.items()},
        {voter: Endpoint.of(each["endpoint"]) for voter, each in voters.items() if each["endpoint"] is not None},
        frozenset(voter for voter, each in voters.items() if not each["reachable"]),
        tuple(quorum.get("planned", ())),  # an older controller knows no plans
    )


def _as_registered(joined: JoinedDisk) -> JoinedDisk:
    """What a registration says, and on which node: a node that came again is registered again."""
    assert joined.disk is not None, joined
    disk = replace(joined.disk, controllers=(), controller_endpoint=None)
    return replace(joined, disk=disk, has_metadata=False, proof=None)


def _found_there(offered: JoinedDisk, folder: FolderFound) -> JoinedDisk:
    return replace(
        offered,
        disk=folder.disk,
        reservation=folder.reservation,
        has_metadata=folder.has_metadata,
        proof=folder.proof,
        has_tls=folder.has_tls,
    )


def _broker_id(joined: JoinedDisk) -> int:
    assert joined.disk is not None, joined
    return joined.disk.broker_id


def _reservation(blank: JoinedDisk, cluster_id: str, broker_id: int, joined: Sequence[JoinedDisk]) -> Reservation:
    return Reservation(blank.directory_id, rack_of(blank, joined), cluster_id, broker_id)


def _all_done(answers: Mapping[uuid.UUID, Any]) -> None:
    failed = [answer for _, answer in sorted(answers.items()) if isinstance(answer, Exception)]
    if failed:
        raise ClusterError("; ".join(map(str, failed)))
