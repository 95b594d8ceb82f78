/* CRC-32C (Castagnoli), reflected: by the processor's own instruction where it has one, else by tables.

   The instruction takes three cycles and one can begin in each, so three stretches of a buffer are summed
   side by side and put together: the CRC of A followed by n bytes is the CRC of A "advanced over n zeros"
   xor that of the n bytes. Advancing is linear over GF(2); its tables are made once, at import.

   Source: Kafka 2.7 implementation, section 5.3.1 (crc); RFC 3720, appendix B.4 (polynomial, test values). */

#ifndef EMBEDLOG_CRC32C_H
#define EMBEDLOG_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CRC32C_POLYNOMIAL 0x82f63b78u
#define CRC32C_LONG 4096
#define CRC32C_SHORT 256
#define CRC32C_TINY 40

#if defined(__x86_64__) && defined(__GNUC__)
#define CRC32C_TARGET __attribute__((target("sse4.2")))
#define CRC32C_STEP(crc, word) __builtin_ia32_crc32di((crc), (word))
#define CRC32C_HALF(crc, half) __builtin_ia32_crc32si((uint32_t)(crc), (half))
#define CRC32C_BYTE(crc, byte) __builtin_ia32_crc32qi((uint32_t)(crc), (byte))
#define CRC32C_SUPPORTED() __builtin_cpu_supports("sse4.2")
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define CRC32C_TARGET
#define CRC32C_STEP(crc, word) __crc32cd((uint32_t)(crc), (word))
#define CRC32C_HALF(crc, half) __crc32cw((uint32_t)(crc), (half))
#define CRC32C_BYTE(crc, byte) __crc32cb((uint32_t)(crc), (byte))
#define CRC32C_SUPPORTED() 1
#endif

static uint32_t crc32c_table[8][256];
static uint32_t crc32c_over_long[4][256];
static uint32_t crc32c_over_short[4][256];
static uint32_t crc32c_over_tiny[4][256];
static int crc32c_by_instruction;

static uint32_t crc32c_advanced(const uint32_t table[4][256], uint32_t crc)
{
    return table[0][crc & 255] ^ table[1][crc >> 8 & 255] ^ table[2][crc >> 16 & 255] ^ table[3][crc >> 24];
}

static void crc32c_make_advancing(uint32_t table[4][256], size_t zeros)
{
    uint32_t of_bit[32];
    for (int bit = 0; bit < 32; bit++) {
        uint32_t crc = (uint32_t)1 << bit;
        for (size_t i = 0; i < zeros; i++)
            crc = crc32c_table[0][crc & 255] ^ crc >> 8;
        of_bit[bit] = crc;
    }
    for (int byte = 0; byte < 4; byte++)
        for (int value = 0; value < 256; value++) {
            uint32_t crc = 0;
            for (int bit = 0; bit < 8; bit++)
                if (value >> bit & 1)
                    crc ^= of_bit[8 * byte + bit];
            table[byte][value] = crc;
        }
}

/* Once, before the first sum. */
static void crc32c_prepare(void)
{
    for (int value = 0; value < 256; value++) {
        uint32_t crc = (uint32_t)value;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ CRC32C_POLYNOMIAL : crc >> 1;
        crc32c_table[0][value] = crc;
    }
    for (int value = 0; value < 256; value++)
        for (int k = 1; k < 8; k++)
            crc32c_table[k][value] =
                crc32c_table[0][crc32c_table[k - 1][value] & 255] ^ crc32c_table[k - 1][value] >> 8;
    crc32c_make_advancing(crc32c_over_long, CRC32C_LONG);
    crc32c_make_advancing(crc32c_over_short, CRC32C_SHORT);
    crc32c_make_advancing(crc32c_over_tiny, CRC32C_TINY);
#ifdef CRC32C_STEP
    crc32c_by_instruction = CRC32C_SUPPORTED();
#endif
}

/* Eight bytes a step, each byte's share from its own table; byte order does not matter. */
static uint32_t crc32c_by_table(uint32_t crc, const uint8_t *data, size_t size)
{
    for (; size >= 8; data += 8, size -= 8) {
        crc ^= data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        crc = crc32c_table[7][crc & 255] ^ crc32c_table[6][crc >> 8 & 255] ^ crc32c_table[5][crc >> 16 & 255]
            ^ crc32c_table[4][crc >> 24] ^ crc32c_table[3][data[4]] ^ crc32c_table[2][data[5]]
            ^ crc32c_table[1][data[6]] ^ crc32c_table[0][data[7]];
    }
    for (; size; data++, size--)
        crc = crc32c_table[0][(crc ^ *data) & 255] ^ crc >> 8;
    return crc;
}

#ifdef CRC32C_STEP
static inline uint64_t crc32c_word(const uint8_t *data)
{
    uint64_t word;
    memcpy(&word, data, 8);
    return word;
}

/* Both architectures with the instruction run little-endian. */
#define CRC32C_THREE(STRETCH, TABLE)                                                              \
    for (; size >= 3 * (STRETCH); data += 3 * (STRETCH), size -= 3 * (STRETCH)) {                 \
        uint64_t second = 0, third = 0;                                                           \
        for (size_t i = 0; i < (STRETCH); i += 8) {                                               \
            first = CRC32C_STEP(first, crc32c_word(data + i));                                    \
            second = CRC32C_STEP(second, crc32c_word(data + (STRETCH) + i));                      \
            third = CRC32C_STEP(third, crc32c_word(data + 2 * (STRETCH) + i));                    \
        }                                                                                         \
        first = crc32c_advanced((TABLE), (uint32_t)first) ^ second;                               \
        first = crc32c_advanced((TABLE), (uint32_t)first) ^ third;                                \
    }

CRC32C_TARGET static uint32_t crc32c_hardware(uint32_t crc, const uint8_t *data, size_t size)
{
    uint64_t first = crc;
    CRC32C_THREE(CRC32C_LONG, crc32c_over_long)
    CRC32C_THREE(CRC32C_SHORT, crc32c_over_short)
    CRC32C_THREE(CRC32C_TINY, crc32c_over_tiny)
    for (; size >= 8; data += 8, size -= 8)
        first = CRC32C_STEP(first, crc32c_word(data));
    if (size >= 4) {
        uint32_t half;
        memcpy(&half, data, 4);
        first = CRC32C_HALF(first, half);
        data += 4, size -= 4;
    }
    for (; size; data++, size--)
        first = CRC32C_BYTE(first, *data);
    return (uint32_t)first;
}
#endif

static uint32_t crc32c_sum(const uint8_t *data, size_t size)
{
#ifdef CRC32C_STEP
    if (crc32c_by_instruction)
        return ~crc32c_hardware(0xffffffffu, data, size);
#endif
    return ~crc32c_by_table(0xffffffffu, data, size);
}

#endif
