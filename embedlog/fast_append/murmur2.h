/* MurmurHash2 of a key, 32 bits, as in Kafka's `Utils.murmur2` (clients/partitioner.py has it in Python). */

#ifndef EMBEDLOG_MURMUR2_H
#define EMBEDLOG_MURMUR2_H

#include <stddef.h>
#include <stdint.h>

static inline uint32_t murmur2(const uint8_t *key, size_t size)
{
    const uint32_t m = 0x5BD1E995u;
    uint32_t h = 0x9747B28Cu ^ (uint32_t)size;
    for (; size >= 4; key += 4, size -= 4) {
        uint32_t k = key[0] | (uint32_t)key[1] << 8 | (uint32_t)key[2] << 16 | (uint32_t)key[3] << 24;
        k *= m;
        h = (h * m) ^ ((k ^ k >> 24) * m);
    }
    if (size) {
        if (size > 2)
            h ^= (uint32_t)key[2] << 16;
        if (size > 1)
            h ^= (uint32_t)key[1] << 8;
        h = (h ^ key[0]) * m;
    }
    h = (h ^ h >> 13) * m;
    return h ^ h >> 15;
}

#endif
