# The C types and C functions of compiled_scanning.py; those that read bytes are in parsing.pxd.

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free, malloc, realloc

from .compiled_decoding cimport place_of
from .parsing cimport (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MIN_RECORD_SIZE,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Fields,
    Header,
    Held,
    Place,
    Reading,
    batch_end,
    crc32c_prepare,
    fits,
    header,
    hold,
    int32_t,
    int64_t,
    intact,
    load_u32,
    load_u64,
    record,
    release,
    uint8_t,
    uint32_t,
    uint64_t,
    varint,
)


cdef extern from "crc32c.h" nogil:
    enum: CRC32C_FOUR
    enum: CRC32C_HEAD
    uint32_t crc32c_head(const uint8_t* batch)
    void crc32c_sum_four(const uint8_t** data, const size_t* size, uint32_t* sums)


cdef extern from "fields.h" nogil:
    bint unlike(const uint8_t* batch, const uint8_t* like)


cdef enum:
    TOGETHER = CRC32C_FOUR
    BASE_SEQUENCE_POS = 53


# The state of a scan; copied back if the last batch turns out not to be part of the run.
cdef struct ScanTotals:
    Reading at
    Place place
    int64_t next_entry_pos
    int64_t largest
    int64_t largest_offset
    int64_t indexed
    int64_t indexed_offset
    int64_t batches
    int64_t records
    uint32_t heads
    Py_ssize_t entries
    Py_ssize_t times
    Py_ssize_t sequenced


# Where it began, the index's rules, and the results. The columns of entries have room for all possible ones.
cdef struct Columns:
    Reading start
    bint sum_heads
    int64_t file_pos
    int64_t interval
    int64_t base
    uint32_t* positions
    uint32_t* offsets
    int64_t* timestamps
    uint32_t* timestamp_offsets
    uint32_t* sequenced
    Py_ssize_t sequenced_room


# The entries of an index.
cdef struct Index:
    int64_t base_offset
    uint32_t* positions
    uint32_t* offsets
    Py_ssize_t entries
    int64_t* timestamps
    uint32_t* timestamp_offsets
    Py_ssize_t times


# The earliest and the latest timestamp of some records.
cdef struct Times:
    int64_t earliest
    int64_t latest


cdef bint _scan(ScanTotals* totals, Columns* columns, Reading stop, bint check_crc) noexcept nogil
cdef void _add(ScanTotals* totals, Columns* columns, Reading batch, int64_t last_offset, int64_t max_timestamp_ms) noexcept nogil
cdef bint _scan_alike(ScanTotals* totals, Columns* columns, Reading like, Header* batch, Reading stop) noexcept nogil
cdef bint _note_sequenced(Columns* columns, ScanTotals* totals, uint32_t pos) noexcept nogil
cdef int _begin(ScanTotals* totals, Columns* columns, object rules, object index_state) except -1
cdef int _allocate(Columns* columns, Py_ssize_t size) except -1
cdef object _results(ScanTotals* totals, Columns* columns)
cdef object _column(object code, void* items, Py_ssize_t size)
cdef bint _checked(Reading at, Header* batch, Times* times) noexcept nogil
cdef bint _is_ready(Reading start, Reading stop, Header* batch) noexcept nogil
cdef bint _agrees(Index* index, Reading at, int64_t file_pos, Py_ssize_t* entry, Py_ssize_t* time, int64_t* largest, bint whole) noexcept nogil
