"""Kafka's transaction coordinator, pure: events in, effects out.

``machine`` decides for the transactional ids of one partition of ``__transaction_state``, on top of
``raylog.coordination``. ``transaction`` says how a transaction goes from state to state, ``ending``
has its markers written, ``records`` are its bytes in the log.
"""
