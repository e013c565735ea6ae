"""What is read of a message before it is parsed: nothing of its header table, so that nothing in it can matter."""

import re
import struct
from hashlib import sha256

import msgspec

from apc_bus.rabbit.decoding import user_id_of

_ARGUMENTS_AT = 4
"""After the class and the method."""
_TAG = struct.Struct(">QB")
_FLAG_BEHIND_IT = _ARGUMENTS_AT + _TAG.size
"""After the consumer tag, whose length is the first argument."""
_FLAGS_AT, _FIELDS_AT = 12, 14
_CONTENT_TYPE, _ENCODING, _TABLE = 1 << 15, 1 << 14, 1 << 13
_COUNTS = re.compile(rb"\x10x-(?:delivery|acquired)-count(?:[bBt].|[sUu]..|[iI].{4}|[lLT].{8})", re.DOTALL)
"""What the broker changes at every delivery."""


class RawMessage(msgspec.Struct, frozen=True, gc=False):
    """The payloads of basic.deliver, of the content header and of the body."""

    method: bytes
    properties: bytes
    body: bytes

    @property
    def tag(self) -> int:
        """The delivery tag."""
        return int(_TAG.unpack_from(self.method, self._tag_at)[0])

    @property
    def is_redelivered(self) -> bool:
        """Whether it was delivered before."""
        method = self.method
        return (method[method[_ARGUMENTS_AT] + _FLAG_BEHIND_IT] & 1) == 1  # asked for each message: a bool() is slower

    @property
    def user_id(self) -> str | None:
        """The broker user who published it, as far as it can be read."""
        try:
            return user_id_of(self.properties)
        except (IndexError, struct.error):
            return None

    @property
    def fingerprint(self) -> bytes:
        """What tells it from other messages of its queue, the same at every delivery."""
        digest = sha256(self.method[self._tag_at + _TAG.size :])
        for part in (_COUNTS.sub(b"", _without_table_length(self.properties)), self.body):
            digest.update(sha256(part).digest())
        return digest.digest()

    @property
    def _tag_at(self) -> int:
        return _ARGUMENTS_AT + 1 + self.method[_ARGUMENTS_AT]


def _without_table_length(properties: bytes) -> bytes:
    flags = int.from_bytes(properties[_FLAGS_AT:_FIELDS_AT], "big")
    position = _FIELDS_AT
    for flag in (_CONTENT_TYPE, _ENCODING):
        if flags & flag and position < len(properties):
            position += 1 + properties[position]
    if flags & _TABLE:
        return properties[_FLAGS_AT:position] + properties[position + 4 :]
    return properties[_FLAGS_AT:]
