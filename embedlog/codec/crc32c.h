/* CRC-32C (Castagnoli), reflected: by folding or by the processor's own instruction where it has these, else
   by tables.

   The instruction takes three cycles and one can begin in each, so three stretches of a buffer are summed
   side by side and put together: the CRC of A followed by n bytes is the CRC of A "advanced over n zeros"
   xor that of the n bytes. Advancing is linear over GF(2); its tables are made once, at import.

   Folding multiplies polynomials, 64 bytes at a time (AVX-512 with VPCLMULQDQ). The remainder of A times x^n
   is that of (its first half times x^(n+64) mod P) + (its second half times x^n mod P), which is shorter: so
   64 bytes are put onto those that lie n bits behind them, until 16 are left. A product of two reflected
   numbers is one bit too low, and a constant of 32 bits stands 32 too high: hence the exponents n+31, n-33.

   Where there are but 32 bytes to a register (AVX2 with VPCLMULQDQ) folding is hardly faster than the
   instruction; but the two keep different parts of the processor busy. So of each block the first 128 parts of
   224 are folded, and meanwhile the other three times 32 summed by the instruction: nearly twice as fast.

   Source: Kafka 2.7 implementation, section 5.3.1 (crc); RFC 3720, appendix B.4 (polynomial, test values). */

#ifndef EMBEDLOG_CRC32C_H
#define EMBEDLOG_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CRC32C_POLYNOMIAL 0x82f63b78u
#define CRC32C_HEAD 21 /* bytes of a record batch, up to those that its own CRC covers, this CRC included */
#define CRC32C_FOUR 4
#define CRC32C_LONG 4096
#define CRC32C_SHORT 256
#define CRC32C_TINY 40
#define CRC32C_MANY 64 /* steps of a large block for mixing, of 224 bytes each, and of a small one */
#define CRC32C_FEW 16

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
static uint32_t crc32c_over_many[4][256];
static uint32_t crc32c_over_few[4][256];

/* The ways to sum, from the slowest on; the best that this processor knows. */
enum { CRC32C_BY_TABLE, CRC32C_BY_INSTRUCTION, CRC32C_BY_MIXING, CRC32C_BY_FOLDING };
static int crc32c_best;

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

#if defined(__x86_64__) && defined(__GNUC__) && (defined(__clang__) ? __clang_major__ >= 8 : __GNUC__ >= 9)
#include <immintrin.h>
#define CRC32C_FOLDING __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2")))
#define CRC32C_FOLDS() (__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("vpclmulqdq"))
#define CRC32C_MIXING __attribute__((target("avx2,vpclmulqdq,pclmul,sse4.2")))
#define CRC32C_MIXES() (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq"))
/* Code for 16 bytes a register that finds the wide ones in use costs some processors 300 ns (Sapphire Rapids);
   GCC clears them by itself only where the whole file is compiled for them. */
#define CRC32C_LEAVE_WIDE() _mm256_zeroupper()
#define CRC32C_FOLDED 128 /* with less the instruction is as fast */

static uint64_t crc32c_over_256_bytes[2];
static uint64_t crc32c_over_128_bytes[2];
static uint64_t crc32c_over_64_bytes[2];
static uint64_t crc32c_over_32_bytes[2];
static uint64_t crc32c_over_16_bytes[2];
static uint64_t crc32c_over_lanes[8]; /* each 16 bytes of 64 onto the last 16; those stay as they are */

static uint32_t crc32c_power_of_x(unsigned n)
{
    uint32_t crc = 0x80000000u;
    while (n--)
        crc = crc & 1 ? crc >> 1 ^ CRC32C_POLYNOMIAL : crc >> 1;
    return crc;
}

static void crc32c_make_fold(uint64_t *fold, unsigned bits)
{
    fold[0] = crc32c_power_of_x(bits + 31);
    fold[1] = crc32c_power_of_x(bits - 33);
}

static void crc32c_make_folds(void)
{
    crc32c_make_fold(crc32c_over_256_bytes, 2048);
    crc32c_make_fold(crc32c_over_128_bytes, 1024);
    crc32c_make_fold(crc32c_over_64_bytes, 512);
    crc32c_make_fold(crc32c_over_32_bytes, 256);
    crc32c_make_fold(crc32c_over_16_bytes, 128);
    for (unsigned lane = 0; lane < 3; lane++)
        crc32c_make_fold(crc32c_over_lanes + 2 * lane, 128 * (3 - lane));
}
#endif

/* Once, before the first sum. */
static inline void crc32c_prepare(void)
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
    crc32c_make_advancing(crc32c_over_many, 32 * CRC32C_MANY);
    crc32c_make_advancing(crc32c_over_few, 32 * CRC32C_FEW);
    crc32c_best = CRC32C_BY_TABLE;
#ifdef CRC32C_STEP
    if (CRC32C_SUPPORTED())
        crc32c_best = CRC32C_BY_INSTRUCTION;
#endif
#ifdef CRC32C_FOLDS
    if (crc32c_best == CRC32C_BY_INSTRUCTION && CRC32C_MIXES()) {
        crc32c_best = CRC32C_FOLDS() ? CRC32C_BY_FOLDING : CRC32C_BY_MIXING;
        crc32c_make_folds();
    }
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

/* What is left of a stretch. */
CRC32C_TARGET static inline uint32_t crc32c_rest(uint64_t crc, const uint8_t *data, size_t size)
{
    for (; size >= 8; data += 8, size -= 8)
        crc = CRC32C_STEP(crc, crc32c_word(data));
    if (size & 4) {
        uint32_t half;
        memcpy(&half, data, 4);
        crc = CRC32C_HALF(crc, half);
        data += 4;
    }
    for (size &= 3; size; data++, size--)
        crc = CRC32C_BYTE(crc, *data);
    return (uint32_t)crc;
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
    return crc32c_rest(first, data, size);
}
#endif

/* Murmur3's last step. CRCs are linear: what changes many of them alike would hardly change their sum. */
static inline uint32_t crc32c_scattered(uint32_t crc)
{
    crc = (crc ^ crc >> 16) * 0x85ebca6bu;
    crc = (crc ^ crc >> 13) * 0xc2b2ae35u;
    return crc ^ crc >> 16;
}

#ifdef CRC32C_STEP
CRC32C_TARGET static uint32_t crc32c_hardware_head(const uint8_t *batch)
{
    uint32_t half;
    memcpy(&half, batch + 16, 4);
    uint64_t crc = CRC32C_STEP(CRC32C_STEP(0xffffffffu, crc32c_word(batch)), crc32c_word(batch + 8));
    return crc32c_scattered(~CRC32C_BYTE(CRC32C_HALF(crc, half), batch[20]));
}

/* Four short stretches side by side, since a step waits for the one before it. */
CRC32C_TARGET static void crc32c_hardware_four(const uint8_t *const *data, const size_t *size, uint32_t *sums)
{
    uint64_t first = 0xffffffffu, second = first, third = first, fourth = first;
    size_t least = size[0] < size[1] ? size[0] : size[1];
    least = least < size[2] ? least : size[2];
    least = (least < size[3] ? least : size[3]) & ~(size_t)7;
    const uint8_t *a = data[0], *b = data[1], *c = data[2], *d = data[3];
    for (size_t i = 0; i < least; i += 8) {
        first = CRC32C_STEP(first, crc32c_word(a + i));
        second = CRC32C_STEP(second, crc32c_word(b + i));
        third = CRC32C_STEP(third, crc32c_word(c + i));
        fourth = CRC32C_STEP(fourth, crc32c_word(d + i));
    }
    sums[0] = ~crc32c_rest(first, a + least, size[0] - least);
    sums[1] = ~crc32c_rest(second, b + least, size[1] - least);
    sums[2] = ~crc32c_rest(third, c + least, size[2] - least);
    sums[3] = ~crc32c_rest(fourth, d + least, size[3] - least);
}
#endif

#ifdef CRC32C_FOLDS
CRC32C_FOLDING static inline __m512i crc32c_folded(__m512i from, __m512i fold, __m512i onto)
{
    __m512i first = _mm512_clmulepi64_epi128(from, fold, 0x00);
    return _mm512_ternarylogic_epi64(first, _mm512_clmulepi64_epi128(from, fold, 0x11), onto, 0x96);
}

CRC32C_FOLDING static inline __m512i crc32c_fold(const uint64_t *fold)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)fold));
}

CRC32C_MIXING static inline __m256i crc32c_load(const uint8_t *data)
{
    return _mm256_loadu_si256((const __m256i *)data);
}

CRC32C_MIXING static inline __m256i crc32c_folded_32(__m256i from, __m256i fold, __m256i onto)
{
    __m256i first = _mm256_clmulepi64_epi128(from, fold, 0x00);
    return _mm256_xor_si256(_mm256_xor_si256(first, _mm256_clmulepi64_epi128(from, fold, 0x11)), onto);
}

CRC32C_MIXING static inline __m256i crc32c_fold_32(const uint64_t *fold)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)fold));
}

/* A block of so many steps; the table advances over 32 bytes for each. */
CRC32C_MIXING static inline uint32_t crc32c_mixed(
    uint32_t crc, const uint8_t *data, size_t steps, const uint32_t table[4][256])
{
    const uint8_t *word = data + 128 * steps;
    size_t apart = 32 * steps;
    uint64_t first = 0, second = 0, third = 0;
    __m256i far = crc32c_fold_32(crc32c_over_128_bytes), near = crc32c_fold_32(crc32c_over_32_bytes);
    __m256i x = _mm256_xor_si256(crc32c_load(data), _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, (int)crc));
    __m256i y = crc32c_load(data + 32), z = crc32c_load(data + 64), w = crc32c_load(data + 96);
    for (size_t step = 0; step < steps; step++) {
        if (step) {
            x = crc32c_folded_32(x, far, crc32c_load(data));
            y = crc32c_folded_32(y, far, crc32c_load(data + 32));
            z = crc32c_folded_32(z, far, crc32c_load(data + 64));
            w = crc32c_folded_32(w, far, crc32c_load(data + 96));
        }
        data += 128;
        for (int i = 0; i < 4; i++, word += 8) {
            first = CRC32C_STEP(first, crc32c_word(word));
            second = CRC32C_STEP(second, crc32c_word(word + apart));
            third = CRC32C_STEP(third, crc32c_word(word + 2 * apart));
        }
    }
    x = crc32c_folded_32(crc32c_folded_32(crc32c_folded_32(x, near, y), near, z), near, w);
    __m128i half = _mm256_castsi256_si128(x);
    __m128i fold = _mm_loadu_si128((const __m128i *)crc32c_over_16_bytes);
    __m128i last = _mm_xor_si128(_mm_clmulepi64_si128(half, fold, 0x00), _mm_clmulepi64_si128(half, fold, 0x11));
    last = _mm_xor_si128(last, _mm256_extracti128_si256(x, 1));
    uint64_t rest = CRC32C_STEP(0, (uint64_t)_mm_cvtsi128_si64(last));
    crc = (uint32_t)CRC32C_STEP(rest, (uint64_t)_mm_extract_epi64(last, 1));
    CRC32C_LEAVE_WIDE();
    crc = crc32c_advanced(table, crc) ^ (uint32_t)first;
    crc = crc32c_advanced(table, crc) ^ (uint32_t)second;
    return crc32c_advanced(table, crc) ^ (uint32_t)third;
}

CRC32C_MIXING static uint32_t crc32c_by_mixing(uint32_t crc, const uint8_t *data, size_t size)
{
    for (; size >= 224 * CRC32C_MANY; data += 224 * CRC32C_MANY, size -= 224 * CRC32C_MANY)
        crc = crc32c_mixed(crc, data, CRC32C_MANY, crc32c_over_many);
    for (; size >= 224 * CRC32C_FEW; data += 224 * CRC32C_FEW, size -= 224 * CRC32C_FEW)
        crc = crc32c_mixed(crc, data, CRC32C_FEW, crc32c_over_few);
    return crc32c_hardware(crc, data, size);
}

/* At least 64 bytes. */
CRC32C_FOLDING static uint32_t crc32c_by_folding(uint32_t crc, const uint8_t *data, size_t size)
{
    __m512i x = _mm512_xor_si512(_mm512_loadu_si512(data), _mm512_maskz_set1_epi32(1, (int)crc));
    __m512i over = crc32c_fold(crc32c_over_64_bytes);
    data += 64, size -= 64;
    if (size >= 448) {
        __m512i far = crc32c_fold(crc32c_over_256_bytes);
        __m512i y = _mm512_loadu_si512(data);
        __m512i z = _mm512_loadu_si512(data + 64);
        __m512i w = _mm512_loadu_si512(data + 128);
        for (data += 192, size -= 192; size >= 256; data += 256, size -= 256) {
            x = crc32c_folded(x, far, _mm512_loadu_si512(data));
            y = crc32c_folded(y, far, _mm512_loadu_si512(data + 64));
            z = crc32c_folded(z, far, _mm512_loadu_si512(data + 128));
            w = crc32c_folded(w, far, _mm512_loadu_si512(data + 192));
        }
        x = crc32c_folded(crc32c_folded(crc32c_folded(x, over, y), over, z), over, w);
    }
    for (; size >= 64; data += 64, size -= 64)
        x = crc32c_folded(x, over, _mm512_loadu_si512(data));
    __m512i lanes = crc32c_folded(x, _mm512_loadu_si512(crc32c_over_lanes), _mm512_setzero_si512());
    __m128i last = _mm_xor_si128(_mm512_castsi512_si128(lanes), _mm512_extracti32x4_epi32(lanes, 1));
    last = _mm_xor_si128(last, _mm512_extracti32x4_epi32(lanes, 2));
    last = _mm_xor_si128(last, _mm512_extracti32x4_epi32(x, 3));
    uint64_t rest = CRC32C_STEP(0, (uint64_t)_mm_cvtsi128_si64(last));
    crc = (uint32_t)CRC32C_STEP(rest, (uint64_t)_mm_extract_epi64(last, 1));
    CRC32C_LEAVE_WIDE();
    return crc32c_hardware(crc, data, size);
}
#endif

static uint32_t crc32c_sum_by(int way, const uint8_t *data, size_t size)
{
#ifdef CRC32C_FOLDS
    if (way == CRC32C_BY_FOLDING && size >= CRC32C_FOLDED)
        return ~crc32c_by_folding(0xffffffffu, data, size);
    if (way == CRC32C_BY_MIXING && size >= 224 * CRC32C_FEW)
        return ~crc32c_by_mixing(0xffffffffu, data, size);
#endif
#ifdef CRC32C_STEP
    if (way != CRC32C_BY_TABLE)
        return ~crc32c_hardware(0xffffffffu, data, size);
#endif
    return ~crc32c_by_table(0xffffffffu, data, size);
}

static inline uint32_t crc32c_sum(const uint8_t *data, size_t size)
{
    return crc32c_sum_by(crc32c_best, data, size);
}

/* The sum of a record batch's head, scattered. */
static inline uint32_t crc32c_head(const uint8_t *batch)
{
#ifdef CRC32C_STEP
    if (crc32c_best != CRC32C_BY_TABLE)
        return crc32c_hardware_head(batch);
#endif
    return crc32c_scattered(crc32c_sum(batch, CRC32C_HEAD));
}

/* The sums of CRC32C_FOUR stretches. */
static inline void crc32c_sum_four(const uint8_t *const *data, const size_t *size, uint32_t *sums)
{
#ifdef CRC32C_STEP
    if (crc32c_best != CRC32C_BY_TABLE) {
        crc32c_hardware_four(data, size, sums);
        return;
    }
#endif
    for (int i = 0; i < CRC32C_FOUR; i++)
        sums[i] = crc32c_sum(data[i], size[i]);
}

#endif
