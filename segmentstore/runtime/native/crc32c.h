/* CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), the checksum of Kafka's record batches.
 *
 * crc32c_of(data, length, value) is the checksum of `data` behind what `value` is the checksum of. The instruction of
 * SSE 4.2 where the processor has it, which is asked once; eight bytes at a time from tables elsewhere. Of "123456789" it
 * is 0xE3069283.
 *
 * Invariants:
 *
 * - crc32c_prepare is called once, before all others: when the module that includes this is loaded.
 * - Nothing but the given bytes is read, in any alignment; the result is the same on every processor.
 */
#ifndef SEGMENTSTORE_CRC32C_H
#define SEGMENTSTORE_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define CRC32C_BY_INSTRUCTION 1
#include <immintrin.h>
#else
#define CRC32C_BY_INSTRUCTION 0
#endif

static uint32_t crc32c_tables[8][256];
static int crc32c_has_instruction;

static inline void crc32c_prepare(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
        crc32c_tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = crc32c_tables[table - 1][byte];
            crc32c_tables[table][byte] = before >> 8 ^ crc32c_tables[0][before & 0xFF];
        }
#if CRC32C_BY_INSTRUCTION
    __builtin_cpu_init();
    crc32c_has_instruction = __builtin_cpu_supports("sse4.2");
#endif
}

static inline uint32_t crc32c_word(const uint8_t *data) {
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
}

/* Takes and gives the inverted checksum, as the next one does. */
static inline uint32_t crc32c_by_tables(const uint8_t *data, size_t length, uint32_t crc) {
    for (; length >= 8; data += 8, length -= 8) {
        uint32_t low = crc32c_word(data) ^ crc, high = crc32c_word(data + 4);
        crc = crc32c_tables[7][low & 0xFF] ^ crc32c_tables[6][low >> 8 & 0xFF] ^ crc32c_tables[5][low >> 16 & 0xFF] ^
              crc32c_tables[4][low >> 24] ^ crc32c_tables[3][high & 0xFF] ^ crc32c_tables[2][high >> 8 & 0xFF] ^
              crc32c_tables[1][high >> 16 & 0xFF] ^ crc32c_tables[0][high >> 24];
    }
    for (; length; data++, length--)
        crc = crc >> 8 ^ crc32c_tables[0][(crc ^ *data) & 0xFF];
    return crc;
}

#if CRC32C_BY_INSTRUCTION
__attribute__((target("sse4.2"))) static inline uint32_t crc32c_by_instruction(
    const uint8_t *data, size_t length, uint32_t crc
) {
    uint64_t sum = crc, word;
    for (; length >= 8; data += 8, length -= 8) {
        memcpy(&word, data, 8);
        sum = _mm_crc32_u64(sum, word);
    }
    crc = (uint32_t)sum;
    for (; length; data++, length--)
        crc = _mm_crc32_u8(crc, *data);
    return crc;
}
#endif

static inline uint32_t crc32c_of(const uint8_t *data, size_t length, uint32_t value) {
#if CRC32C_BY_INSTRUCTION
    if (crc32c_has_instruction)
        return ~crc32c_by_instruction(data, length, ~value);
#endif
    return ~crc32c_by_tables(data, length, ~value);
}

#endif
