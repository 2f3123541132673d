"""Who a client is and what it may do: values and decisions, without a loop, a socket or a clock."""
