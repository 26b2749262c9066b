/* CRC-64/NVME, the checksum that S3 calls CRC64NVME: 16 bytes at a time from tables, on every processor.
 *
 * crc64_of(data, length, value) is the checksum of `data` behind what `value` is the checksum of. The polynomial is
 * 0xAD93D23594C93659, reflected; all ones before and after. Of "123456789" it is 0xAE8B14860A799888.
 *
 * Invariants:
 *
 * - crc64_prepare is called once, before all others: when the module that includes this is loaded.
 * - Nothing but the given bytes is read, in any alignment and order of bytes.
 */
#ifndef SEGMENTSTORE_CRC64_H
#define SEGMENTSTORE_CRC64_H

#include <stddef.h>
#include <stdint.h>

#define CRC64_POLYNOMIAL UINT64_C(0x9A6C9329AC4BC9B5)
#define CRC64_TABLES 16

static uint64_t crc64_tables[CRC64_TABLES][256];

static inline void crc64_prepare(void) {
    for (unsigned byte = 0; byte < 256; byte++) {
        uint64_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ CRC64_POLYNOMIAL : crc >> 1;
        crc64_tables[0][byte] = crc;
    }
    for (int table = 1; table < CRC64_TABLES; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint64_t before = crc64_tables[table - 1][byte];
            crc64_tables[table][byte] = before >> 8 ^ crc64_tables[0][before & 0xFF];
        }
}

/* Eight bytes, the first one lowest: compilers make one load of it where that is right. */
static inline uint64_t crc64_word(const uint8_t *data) {
    uint64_t word = 0;
    for (int byte = 7; byte >= 0; byte--)
        word = word << 8 | data[byte];
    return word;
}

/* `word` with `behind` bytes of the sixteen behind it. */
static inline uint64_t crc64_step(uint64_t word, int behind) {
    uint64_t crc = 0;
    for (int byte = 0; byte < 8; byte++)
        crc ^= crc64_tables[behind + 7 - byte][word >> (8 * byte) & 0xFF];
    return crc;
}

static inline uint64_t crc64_of(const uint8_t *data, size_t length, uint64_t value) {
    uint64_t crc = ~value;
    for (; length >= 16; data += 16, length -= 16)
        crc = crc64_step(crc64_word(data) ^ crc, 8) ^ crc64_step(crc64_word(data + 8), 0);
    for (; length; data++, length--)
        crc = crc >> 8 ^ crc64_tables[0][(crc ^ *data) & 0xFF];
    return ~crc;
}

#endif
