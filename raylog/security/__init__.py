"""Who a client is, what it may do and how much: values and decisions, without a loop, a socket or a clock."""
