"""Messages in the wire format of a schema registry, decoded: Avro, Protobuf and JSON Schema.

The console and ``raylog consume`` show them; no client and no server decodes anything. Whoever may
write to a topic says what its bytes are, so nothing here trusts them: the depth, the number of values
and the size of what is decoded are bounded, a registry is asked for a number and nothing else, and a
message that can't be decoded comes back as a sentence that says why. fastavro and protobuf come with
``raylog[schemas]``.

    wire_format    what stands before the payload
    registry       the registry: its address, and one question to it
    schema_cache   schemas that were fetched, and how long a reader waits for one
    avro           Avro by fastavro
    protobuf       Protobuf by descriptors, without protoc
    proto_text     descriptors of a text, for registries that give nothing else
    decoding       bytes in, JSON out
"""
