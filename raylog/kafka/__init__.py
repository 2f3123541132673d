"""What Kafka's APIs are, whoever serves them: one description each (``table``), and the answer that refuses any of them (``refusal``).

``spec`` and ``table`` are plain values and import nothing of raylog's, so that the wire and the clients may read them.
"""
