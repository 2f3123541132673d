"""Consumer groups as pure machines: who is in a group, what each member reads, how far they have
come.

No Ray, no loop, no socket, no clock and no randomness: time and ids come in as arguments. From the
bottom up::

    fields.py              the primitive types of Kafka's messages
    offsets_topic.py       which partition of __consumer_offsets a group belongs to
    records.py             keys and values of __consumer_offsets, byte for byte Kafka's
    consumer_protocol.py   what consumers tell each other inside JoinGroup and SyncGroup
    image.py               what the log says: fold(apply, records)
    requests.py events.py  what is asked and answered; what goes in and comes out
    group.py               one group's members and the state it is in
    sessions.py            whether a member is still there
    rebalances.py          Join, Sync, Heartbeat, Leave: the transitions
    offsets.py             OffsetCommit, OffsetFetch, OffsetDelete, expiry
    coordinator.py         the machine of one partition of __consumer_offsets
    assignors/             how a group's leading member shares out partitions
"""
