"""A copy of the metadata image, folded from the frames of a control session: a Broker's, or that of
a process that coordinates transactions.

Owns the copy and nothing else. The controller sends the whole image when it greets a Broker, or
with the first partition of ``__transaction_state``, in one or more frames, and then each decision
as it commits (``announcements``); a new session begins anew. While a new image is still arriving,
and while there is no controller at all, the last complete one stands, as old as it may be.

Invariant: what ``image`` shows is the fold of a whole prefix of the committed log, never of a part
of a decision.
"""

from __future__ import annotations

from raylog.control.session import ImageChanged
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import decode_batch


class ImageCopy:
    """``image`` is None until the first whole image has arrived. It is folded in place: hold it for
    no longer than a turn of the loop.
    """

    __slots__ = ("_arriving", "image")

    def __init__(self) -> None:
        self.image: MetadataImage | None = None
        self._arriving: MetadataImage | None = None

    def fold(self, frame: ImageChanged) -> bool:
        """Take a frame in, in the order of arrival; whether ``image`` has changed. Raises
        ProtocolError for records that it cannot read.
        """
        if frame.begins:
            self._arriving = MetadataImage.empty()
        target = self._arriving if self._arriving is not None else self.image
        assert target is not None, "a change came before any image"
        for record in decode_batch(frame.batch):
            target.apply(record)
        if self._arriving is not None:
            if not frame.is_complete:
                return False
            self.image, self._arriving = self._arriving, None
        return True
