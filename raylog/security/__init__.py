"""Who may do what: values and decisions, without a loop, a socket or a clock."""
