"""Encodes records in Kafka's formats and decodes them. No I/O, no state between calls.

The rest of embedlog imports the record batch (magic 2) from here:

    BatchBuilder                                                           records, as they come -> one batch
    encode_batch / encode_one / encode_control_batch                       records -> one batch
    assign / make_producible                                               set a log's fields, or reset them
    set_append_time / set_create_time / set_max_timestamp / set_producer   fields set after encoding
    split                                                                  batches one by one
    latest_timestamp / correct_max_timestamps                              one of them, from the records
    scan / read_batch / read_header / find_batch                           a buffer -> its batches' headers
    decode / decode_values / filter_batch                                  one batch -> records, or fewer

The older formats, for imports and old clients, have modules of their own: `message_set` (magic 0 and 1),
`message_07` (Kafka 0.7), and `sniff`, which identifies a format.

Invariants: input is not trusted: every length is checked before use, decompression is bounded. Wrong types
raise InvalidType. All functions are thread-safe. `loops` has the hot loops, compiled or plain.
"""

from .batch_decode import (
    DEFAULT_MAX_BYTES,
    Scan,
    decode,
    decode_values,
    filter_batch,
    find_batch,
    opened_body,
    read_batch,
    recompressed,
    scan,
)
from .batch_encode import encode_batch
from .batch_pieces import correct_max_timestamps, decode_pieces, latest_timestamp
from .checksum import crc32, crc32c
from .compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, codec_name, codec_number, compress, decompress
from .control_batch import (
    ABORT,
    COMMIT,
    TransactionEnd,
    control_type,
    encode_control_batch,
    transaction_end,
)
from .loops import IMPLEMENTATION as LOOPS_IMPLEMENTATION
from .loops import BatchBuilder, checksum_implementation, encode_one
from .plain_encoding import RecordTuple
from .record_batch import (
    HEADER_SIZE,
    LARGEST_BATCH,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    assign,
    assign_all,
    crc_matches,
    heads_sum,
    make_producible,
    read_header,
    set_append_time,
    set_create_time,
    set_max_timestamp,
    set_producer,
    split,
)

__all__ = [
    "ABORT",
    "COMMIT",
    "DEFAULT_MAX_BYTES",
    "GZIP",
    "HEADER_SIZE",
    "LARGEST_BATCH",
    "LOOPS_IMPLEMENTATION",
    "LZ4",
    "NONE",
    "SNAPPY",
    "TIMESTAMP_TYPE_BIT",
    "ZSTD",
    "BatchBuilder",
    "BatchHeader",
    "RecordTuple",
    "Scan",
    "TransactionEnd",
    "assign",
    "assign_all",
    "checksum_implementation",
    "codec_name",
    "codec_number",
    "compress",
    "control_type",
    "correct_max_timestamps",
    "crc32",
    "crc32c",
    "crc_matches",
    "decode",
    "decode_pieces",
    "decode_values",
    "decompress",
    "encode_batch",
    "encode_control_batch",
    "encode_one",
    "filter_batch",
    "find_batch",
    "heads_sum",
    "latest_timestamp",
    "make_producible",
    "opened_body",
    "read_batch",
    "read_header",
    "recompressed",
    "scan",
    "set_append_time",
    "set_create_time",
    "set_max_timestamp",
    "set_producer",
    "split",
    "transaction_end",
]
