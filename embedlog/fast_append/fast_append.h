/* A slot of `writer-state` (storage/writer_state.py) in C: little-endian numbers, and the CRC-32 of zlib. */

#ifndef EMBEDLOG_FAST_APPEND_H
#define EMBEDLOG_FAST_APPEND_H

#include <stddef.h>
#include <stdint.h>

static uint32_t slots_table[8][256];

static inline void slots_prepare(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        slots_table[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++)
            slots_table[k][i] = slots_table[k - 1][i] >> 8 ^ slots_table[0][slots_table[k - 1][i] & 0xFF];
}

static inline void slots_store_u32(uint8_t *at, uint32_t number)
{
    at[0] = (uint8_t)number;
    at[1] = (uint8_t)(number >> 8);
    at[2] = (uint8_t)(number >> 16);
    at[3] = (uint8_t)(number >> 24);
}

static inline void slots_store_u64(uint8_t *at, uint64_t number)
{
    slots_store_u32(at, (uint32_t)number);
    slots_store_u32(at + 4, (uint32_t)(number >> 32));
}

static inline uint32_t slots_load_u32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Eight bytes a step, and then four: `size` is a multiple of four. */
static inline uint32_t slots_crc32(const uint8_t *data, size_t size)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t low = crc ^ slots_load_u32(data), high = slots_load_u32(data + 4);
        crc = slots_table[7][low & 0xFF] ^ slots_table[6][low >> 8 & 0xFF] ^ slots_table[5][low >> 16 & 0xFF] ^
              slots_table[4][low >> 24] ^ slots_table[3][high & 0xFF] ^ slots_table[2][high >> 8 & 0xFF] ^
              slots_table[1][high >> 16 & 0xFF] ^ slots_table[0][high >> 24];
    }
    if (size) {
        crc ^= slots_load_u32(data);
        crc = slots_table[3][crc & 0xFF] ^ slots_table[2][crc >> 8 & 0xFF] ^ slots_table[1][crc >> 16 & 0xFF] ^
              slots_table[0][crc >> 24];
    }
    return ~crc;
}

#endif
