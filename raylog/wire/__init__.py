"""Kafka frames over TCP: the codec, one server class, one client connection, the handshake, and
streams of frames.

Knows nothing of logs, replicas or Ray. ``framing`` moves size-prefixed frames between sockets and
buffers; ``frames`` turns them into kio's entities and back (``schema``, ``bounds`` and ``encoding``
compile what kio leaves slow or unsafe); ``private`` holds the requests that Kafka has no API for;
``server``, ``connection``, ``stream`` and ``dial`` are what the rest of raylog uses. The control
session is a stream of its own kind, in ``raylog.control``.
"""
