"""What a server actor and the controller, and two controllers, say to each other: the frames, and
the streams that carry them.

``session``, ``session_frames`` and ``high_watermarks`` are values and their bytes.
``control_session`` is the machine that keeps a server actor in touch with the active controller.
``session_stream`` and ``quorum_stream`` carry frames over a connection (``raylog.wire``).
"""
