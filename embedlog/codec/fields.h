/* Fixed-width fields as Kafka writes them, big-endian, at any address; and fields copied as they are. */

#ifndef EMBEDLOG_FIELDS_H
#define EMBEDLOG_FIELDS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define FIELDS_SWAP 1
#endif

/* Most keys and values are short: a call of memcpy would take longer than to copy them here. The last bytes are
   copied twice rather than one by one. */
static inline void copy_field(uint8_t *to, const uint8_t *from, size_t size)
{
    if (size > 256 || size < 8) {
        memcpy(to, from, size);
    } else if (size < 16) {
        memcpy(to, from, 8);
        memcpy(to + size - 8, from + size - 8, 8);
    } else {
        for (size_t i = 0; i + 16 < size; i += 16)
            memcpy(to + i, from + i, 16);
        memcpy(to + size - 16, from + size - 16, 16);
    }
}

/* As much, or up to BLOCK - 1 bytes more: fewer questions. */
#define BLOCK 32

static inline void copy_blocks(uint8_t *to, const uint8_t *from, size_t size)
{
    if (size > 256) {
        memcpy(to, from, size);
    } else {
        for (size_t i = 0; i < size; i += BLOCK)
            memcpy(to + i, from + i, BLOCK);
    }
}

static inline uint16_t load_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static inline uint32_t load_u32(const uint8_t *at)
{
#ifdef FIELDS_SWAP
    uint32_t number;
    memcpy(&number, at, 4);
    return __builtin_bswap32(number);
#else
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
#endif
}

static inline uint64_t load_u64(const uint8_t *at)
{
#ifdef FIELDS_SWAP
    uint64_t number;
    memcpy(&number, at, 8);
    return __builtin_bswap64(number);
#else
    return (uint64_t)load_u32(at) << 32 | load_u32(at + 4);
#endif
}

static inline uint64_t differing(const uint8_t *one, const uint8_t *other, size_t size)
{
    uint64_t a = 0, b = 0;
    memcpy(&a, one, size);
    memcpy(&b, other, size);
    return a ^ b;
}

/* Whether two record batches differ in their headers, but for base offset, length, CRC and timestamps. */
static inline int unlike(const uint8_t *batch, const uint8_t *like)
{
    return (differing(batch + 12, like + 12, 4) | differing(batch + 16, like + 16, 1)    /* epoch, magic */
            | differing(batch + 21, like + 21, 4) | differing(batch + 25, like + 25, 2)  /* attributes, last offset */
            | differing(batch + 43, like + 43, 8) | differing(batch + 51, like + 51, 8)  /* producer */
            | differing(batch + 57, like + 57, 4)) != 0;                                 /* records */
}

static inline void store_u32(uint8_t *at, uint32_t number)
{
    at[0] = number >> 24;
    at[1] = number >> 16;
    at[2] = number >> 8;
    at[3] = number;
}

static inline void store_u64(uint8_t *at, uint64_t number)
{
    store_u32(at, number >> 32);
    store_u32(at + 4, (uint32_t)number);
}

static inline void store_u16(uint8_t *at, uint16_t number)
{
    at[0] = number >> 8;
    at[1] = number;
}

/* Bytes of a varint: 1 for each 7 bits that matter, at least 1. */
static inline int varint_size(uint64_t folded)
{
#ifdef __GNUC__
    return ((63 - __builtin_clzll(folded | 1)) * 9 + 73) / 64;
#else
    int size = 1;
    for (; folded > 0x7F; folded >>= 7)
        size++;
    return size;
#endif
}

#endif
