"""Kafka's requests and answers as the machines' events and replies: one file per API key, headed by
its versions.

Each module turns a decoded request (a kio entity) into an event and a machine's reply into the
entity of that version. They decide nothing. Topics travel by name or by id, depending on the
version; the machines know ids only, so a ``TopicNames`` table translates. A name or id that this
actor does not hold becomes an id that no topic has; the machine then answers
UNKNOWN_TOPIC_OR_PARTITION for it like for any other, and the translation back restores what the
client had asked for.
"""
