"""The router behind a Broker's outside listener: every Kafka API answered from the image, or forwarded to whoever owns the answer.

::

    client ── frame ──► Server (ordered) ──► Router ──► cluster_view     Metadata, DescribeCluster: from the Broker's copy
                                               ├──► scattered        Produce, ListOffsets, …: split per owning process, merged
                                               ├──► fetch            the same, and parked while there is too little
                                               └──► controller_link  everything that changes the cluster

It holds no state that matters: the image is a copy, and a fetch session that is lost makes its client send the whole list once. It knows
nothing of Ray and decides nothing about topics, leaders or offsets. Records are never decoded.

Ids. Inside, replicas are named by the node id of their process; outside by the id of their broker, whose address is its Broker's
listener. The translation happens here and nowhere else.
"""
