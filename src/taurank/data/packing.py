"""Lists of ids as bytes: one Arrow stream that may come from anywhere and is used only after a check.

A stream is a schema and one batch with one row: each list is a column of its own, since they differ in length
and type. Its buffers are compressed. A compressed buffer announces its size, and Arrow allocates that much
before it looks at the content; so the announced sizes are added up first, and a stream that would grow out of
all proportion is refused. Nor does Arrow check what a buffer contains; ``validate`` does.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pyarrow as pa

from taurank.errors import InputError

MAX_GROWTH = 64  # announced bytes per byte of the stream: distinct ids do not compress better …
FREE_BYTES = 1 << 20  # … unless they are few

_RECORD_BATCH = 3  # Message.header_type


def pack(lists: Mapping[str, pa.Array]) -> bytes:
    """The lists as one stream, compressed unless they shrink more than ``unpack`` accepts."""
    columns = [pa.ListArray.from_arrays(pa.array([0, len(ids)], pa.int32()), ids) for ids in lists.values()]
    batch = pa.record_batch(columns, names=list(lists))
    data = _stream(batch, "zstd")
    return data if batch.nbytes <= _most(len(data)) else _stream(batch, None)


def _stream(batch: pa.RecordBatch, compression: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as out:
        out.write_batch(batch)
    return bytes(sink.getvalue())


def unpack(data: bytes) -> dict[str, pa.Array]:
    """The lists of a stream, in order; a damaged or crafted stream is refused."""
    try:
        return _unpack(data)
    except Exception as error:  # a damaged stream makes Arrow raise almost anything
        raise InputError("the lists of ids are corrupt; save the file again.") from error


def _unpack(data: bytes) -> dict[str, pa.Array]:
    reader = pa.ipc.open_stream(data)  # checks the schema; reading it from a message would not
    schema, message = reader.schema, _second_message(data)
    if message.type != "record batch" or len(set(schema.names)) != len(schema.names):
        raise ValueError("a stream is a schema and one batch of distinct columns")
    if not all(pa.types.is_list(field.type) and field.type.value_type.num_fields == 0 for field in schema):
        raise TypeError("every column is a list of plain values")
    if any(pa.types.is_dictionary(field.type.value_type) for field in schema):
        raise TypeError("a list of ids is not a dictionary")
    if _announced(message) > _most(len(data)):
        raise ValueError("the stream announces more than it can contain")
    batch = reader.read_next_batch()
    batch.validate(full=True)
    if batch.num_rows != 1 or any(column.null_count for column in batch.columns):
        raise ValueError("a stream has one row, and every list is there")
    return {name: batch.column(name).flatten() for name in schema.names}


def _second_message(data: bytes) -> pa.ipc.Message:
    messages = pa.ipc.MessageReader.open_stream(data)
    messages.read_next_message()
    return messages.read_next_message()


def _most(size: int) -> int:
    return MAX_GROWTH * size + FREE_BYTES


def _announced(message: pa.ipc.Message) -> int:
    """How many bytes the buffers of a batch have when they are decompressed, by their own words."""
    metadata, body = bytes(message.metadata), bytes(message.body or b"")
    table = _Table(metadata, struct.unpack_from("<I", metadata)[0])
    if table.scalar(1, "<B") != _RECORD_BATCH:
        raise ValueError("not a batch")
    batch = table.child(2)
    compressed = batch.offset_of(3) is not None
    total = 0
    for start, length in batch.pairs(2):
        if start < 0 or length < 0 or start + length > len(body):
            raise ValueError("a buffer lies outside the message")
        inner = struct.unpack_from("<q", body, start)[0] if compressed and length else -1
        total += length if inner < 0 else inner  # −1: this one is stored as it is
    return total


class _Table:
    """A table of a FlatBuffer, the format of Arrow's messages: fields are found through a table of offsets."""

    def __init__(self, data: bytes, start: int) -> None:
        self.data, self.start = data, start
        self.fields = start - struct.unpack_from("<i", data, start)[0]
        self.size = struct.unpack_from("<H", data, self._inside(self.fields))[0]

    def offset_of(self, field: int) -> int | None:
        """Where a field is, or None if it is absent."""
        entry = 4 + 2 * field
        if entry + 2 > self.size:
            return None
        distance = struct.unpack_from("<H", self.data, self._inside(self.fields + entry))[0]
        return self.start + distance if distance else None

    def scalar(self, field: int, form: str) -> int:
        offset = self.offset_of(field)
        return 0 if offset is None else int(struct.unpack_from(form, self.data, self._inside(offset))[0])

    def child(self, field: int) -> _Table:
        return _Table(self.data, self._follow(field))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """A vector of structures of two 64-bit integers."""
        offset = self._follow(field)
        (length,) = struct.unpack_from("<I", self.data, offset)
        if 16 * length > len(self.data):
            raise ValueError("a vector is longer than the message")
        return [struct.unpack_from("<qq", self.data, offset + 4 + 16 * n) for n in range(length)]

    def _follow(self, field: int) -> int:
        offset = self.offset_of(field)
        if offset is None:
            raise ValueError("a field is missing")
        return self._inside(offset + struct.unpack_from("<I", self.data, self._inside(offset))[0])

    def _inside(self, offset: int) -> int:
        if not 0 <= offset < len(self.data):
            raise ValueError("a field lies outside the message")
        return offset
