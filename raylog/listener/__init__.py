"""The router behind a Broker's outside listener: it answers each Kafka API from the metadata image
or forwards it to its owner.

::

    client ── frame ──► Server (ordered) ──► Router ──► cluster_view     Metadata, DescribeCluster: from the Broker's copy
                                               ├──► fan_out          Produce, ListOffsets, …: split per owning process, merged
                                               ├──► fetch            the same, and parked while there is too little
                                               └──► controller_link  requests that change the cluster

The router holds no state that must survive: the image is a copy, and a client that loses its fetch
session sends its whole list again. It does not import Ray, never decodes records, and makes no
decision about topics, leaders or offsets.

Inside the cluster, replicas are named by the node id of their process. Kafka clients see the id of
the broker instead, with its listener as the address. Only this package translates between the two.

``moves`` hands a client's connection over to the process that leads its partitions.
"""
