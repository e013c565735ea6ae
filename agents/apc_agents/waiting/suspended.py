"""What ends a run of a handler that waits, whatever the handler catches."""


class Suspended(BaseException):
    """Raised in a handler whose run is over: it waits for an answer, or it did not repeat its records.

    A handler has nothing to do with it: it is no Exception, and what the handler returns after it is ignored.
    """
