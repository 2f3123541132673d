"""The three things every client without a sender needs, bound to one event loop: connections, the
controller, metadata.
"""

from __future__ import annotations

import asyncio

from raylog.client.links.address import ClusterAddress
from raylog.client.links.connections import Connections, ControllerConnection
from raylog.client.links.link_config import LinkConfig
from raylog.client.links.metadata import Metadata


class ClusterLink:
    def __init__(self, address: ClusterAddress, config: LinkConfig, *, borrows_records: bool = False) -> None:
        self.loop = asyncio.get_running_loop()
        self.config = config
        self.connections = Connections(address, config, borrows_records=borrows_records)
        self.controller = ControllerConnection(address, config, self.connections)
        self.metadata = Metadata(config, self.connections, self.controller)

    async def close(self) -> None:
        self.metadata.close()
        await self.connections.close()
