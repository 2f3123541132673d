"""The router behind a Broker's outside listener: every Kafka API answered from the image, or forwarded to whoever owns the answer.

::

    client ── frame ──► Server (ordered) ──► Router ──► cluster_view     Metadata, DescribeCluster: from the Broker's copy
                                               ├──► fan_out          Produce, ListOffsets, …: split per owning process, merged
                                               ├──► fetch            the same, and parked while there is too little
                                               └──► controller_link  everything that changes the cluster

The router holds no state that matters: the image is a copy, and a client that loses its fetch session sends the whole list
once more. It knows nothing of Ray and decides nothing about topics, leaders or offsets. It never decodes records.

Inside, replicas are named by the node id of their process. Outside they are named by the id of their broker, whose address is its
Broker's listener. The translation happens here and nowhere else.

``moves`` gives a client's connection to the process that leads what it asks for.
"""
