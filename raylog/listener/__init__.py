"""How a Broker's listener gets each request of a Kafka client to whoever answers it."""
