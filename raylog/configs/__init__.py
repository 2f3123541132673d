"""The tables of configs under Kafka's names: topics', brokers', and those that raylog refuses, each
with its reason.
"""
