"""Kafka's requests, whichever server answers them.

``table`` describes each API once, and ``refusal`` writes the answer that refuses any of them.
``context`` says who asks, and ``chain`` what runs before a request's handler. ``spec``, ``table``
and ``context`` import nothing of raylog's but its errors, so that the wire and the clients may
read them.
"""
