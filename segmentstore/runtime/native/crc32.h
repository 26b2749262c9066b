/* CRC-32 (IEEE, as in zlib, gzip and the records of volumes): fast for records of some hundred bytes and for megabytes.
 *
 * crc32_of(data, length, value) is the checksum of `data` behind what `value` is the checksum of, as zlib's crc32 is.
 * Vector instructions multiply without carries (PCLMULQDQ, of 512 bits for long data) where the processor has them, which
 * is asked once; eight bytes at a time from tables elsewhere, and for the ends.
 *
 * Invariants:
 *
 * - crc32_prepare is called once, before all others: when the module that includes this is loaded.
 * - Nothing but the given bytes is read, in any alignment; the result is the same on every processor.
 *
 * crc32_behind puts two checksums together, of bytes that stand one behind the other: the first one is multiplied by x^8
 * for each byte of the second, modulo the polynomial.
 *
 * The constants are those of Gopal, Ozturk et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
 * Instruction" (Intel, 2009), for the reflected polynomial 0xEDB88320.
 */
#ifndef SEGMENTSTORE_CRC32_H
#define SEGMENTSTORE_CRC32_H

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define CRC32_BY_VECTORS 1
#include <immintrin.h>
#else
#define CRC32_BY_VECTORS 0
#endif

#define CRC32_VECTOR_BYTES_MIN 64
#define CRC32_WIDE_BYTES_MIN 1024 /* below it the sums of the lanes cost more than they save */

static uint32_t crc32_tables[8][256];
static uint32_t crc32_powers[64]; /* x^(2^n), reflected as all is here: the highest bit is x^0 */
static int crc32_has_vectors, crc32_has_wide_vectors;

/* Modulo the polynomial. */
static inline uint32_t crc32_product(uint32_t one, uint32_t other) {
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (one & bit)
            product ^= other;
        other = other & 1 ? other >> 1 ^ 0xEDB88320u : other >> 1;
    }
    return product;
}

static inline void crc32_prepare(void) {
    crc32_powers[0] = 1u << 30;
    for (int power = 1; power < 64; power++)
        crc32_powers[power] = crc32_product(crc32_powers[power - 1], crc32_powers[power - 1]);
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        crc32_tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = crc32_tables[table - 1][byte];
            crc32_tables[table][byte] = before >> 8 ^ crc32_tables[0][before & 0xFF];
        }
#if CRC32_BY_VECTORS
    __builtin_cpu_init();
    crc32_has_vectors = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    crc32_has_wide_vectors =
        crc32_has_vectors && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
#endif
}

static inline uint32_t crc32_word(const uint8_t *data) {
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
}

/* Takes and gives the inverted checksum, as the next one does. */
static inline uint32_t crc32_by_tables(const uint8_t *data, size_t length, uint32_t crc) {
    for (; length >= 8; data += 8, length -= 8) {
        uint32_t low = crc32_word(data) ^ crc, high = crc32_word(data + 4);
        crc = crc32_tables[7][low & 0xFF] ^ crc32_tables[6][low >> 8 & 0xFF] ^ crc32_tables[5][low >> 16 & 0xFF] ^
              crc32_tables[4][low >> 24] ^ crc32_tables[3][high & 0xFF] ^ crc32_tables[2][high >> 8 & 0xFF] ^
              crc32_tables[1][high >> 16 & 0xFF] ^ crc32_tables[0][high >> 24];
    }
    for (; length; data++, length--)
        crc = crc >> 8 ^ crc32_tables[0][(crc ^ *data) & 0xFF];
    return crc;
}

#if CRC32_BY_VECTORS
#define CRC32_LOAD(at) _mm_loadu_si128((const __m128i *)(const void *)(at))
/* `sum` moved behind by as many bytes as `by` says, and the bytes that stand there. */
#define CRC32_FOLD(sum, by, next) \
    _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(sum, by, 0x11), _mm_clmulepi64_si128(sum, by, 0x00)), next)

/* The checksum of `sum`, which stands for all before it, and of the bytes behind it: a multiple of 16, or none. */
__attribute__((target("pclmul,sse4.1"))) static inline uint32_t crc32_of_sum(
    __m128i sum, const uint8_t *data, size_t length
) {
    const __m128i by_16 = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0);
    const __m128i by_4 = _mm_set_epi64x(0, 0x163CD6124), polynomial = _mm_set_epi64x(0x1F7011641, 0x1DB710641);
    const __m128i low_words = _mm_setr_epi32(-1, 0, -1, 0);
    for (; length >= 16; data += 16, length -= 16)
        sum = CRC32_FOLD(sum, by_16, CRC32_LOAD(data));
    /* 128 bits to 64, to 32 by the reduction of Barrett. */
    sum = _mm_xor_si128(_mm_srli_si128(sum, 8), _mm_clmulepi64_si128(sum, by_16, 0x10));
    __m128i high = _mm_srli_si128(sum, 4);
    sum = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(sum, low_words), by_4, 0x00), high);
    __m128i quotient = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(sum, low_words), polynomial, 0x10), low_words);
    sum = _mm_xor_si128(sum, _mm_clmulepi64_si128(quotient, polynomial, 0x00));
    return (uint32_t)_mm_extract_epi32(sum, 1);
}

/* `length` is a multiple of 16, and 64 at least. */
__attribute__((target("pclmul,sse4.1"))) static inline uint32_t crc32_by_vectors(
    const uint8_t *data, size_t length, uint32_t crc
) {
    const __m128i by_64 = _mm_set_epi64x(0x1C6E41596, 0x154442BD4), by_16 = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0);
    __m128i first = _mm_xor_si128(CRC32_LOAD(data), _mm_cvtsi32_si128((int)crc));
    __m128i second = CRC32_LOAD(data + 16), third = CRC32_LOAD(data + 32), fourth = CRC32_LOAD(data + 48);
    for (data += 64, length -= 64; length >= 64; data += 64, length -= 64) {
        first = CRC32_FOLD(first, by_64, CRC32_LOAD(data));
        second = CRC32_FOLD(second, by_64, CRC32_LOAD(data + 16));
        third = CRC32_FOLD(third, by_64, CRC32_LOAD(data + 32));
        fourth = CRC32_FOLD(fourth, by_64, CRC32_LOAD(data + 48));
    }
    __m128i sum = CRC32_FOLD(first, by_16, second);
    sum = CRC32_FOLD(sum, by_16, third);
    sum = CRC32_FOLD(sum, by_16, fourth);
    return crc32_of_sum(sum, data, length);
}

#define CRC32_WIDE_LOAD(at) _mm512_loadu_si512((const void *)(at))
#define CRC32_WIDE_FOLD(sum, by, next) \
    _mm512_ternarylogic_epi64( \
        _mm512_clmulepi64_epi128(sum, by, 0x11), _mm512_clmulepi64_epi128(sum, by, 0x00), next, 0x96 /* all of one, or one */ \
    )

/* The same by four times as wide vectors. `length` is a multiple of 16, and 256 at least. */
__attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.1"))) static inline uint32_t crc32_by_wide_vectors(
    const uint8_t *data, size_t length, uint32_t crc
) {
    const __m512i by_256 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1322D1430, 0x11542778A));
    const __m128i by_16 = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0);
    __m512i first = _mm512_xor_si512(CRC32_WIDE_LOAD(data), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    __m512i second = CRC32_WIDE_LOAD(data + 64), third = CRC32_WIDE_LOAD(data + 128);
    __m512i fourth = CRC32_WIDE_LOAD(data + 192);
    for (data += 256, length -= 256; length >= 256; data += 256, length -= 256) {
        first = CRC32_WIDE_FOLD(first, by_256, CRC32_WIDE_LOAD(data));
        second = CRC32_WIDE_FOLD(second, by_256, CRC32_WIDE_LOAD(data + 64));
        third = CRC32_WIDE_FOLD(third, by_256, CRC32_WIDE_LOAD(data + 128));
        fourth = CRC32_WIDE_FOLD(fourth, by_256, CRC32_WIDE_LOAD(data + 192));
    }
    uint8_t lanes[256];
    _mm512_storeu_si512(lanes, first);
    _mm512_storeu_si512(lanes + 64, second);
    _mm512_storeu_si512(lanes + 128, third);
    _mm512_storeu_si512(lanes + 192, fourth);
    __m128i sum = CRC32_LOAD(lanes);
    for (int lane = 16; lane < 256; lane += 16)
        sum = CRC32_FOLD(sum, by_16, CRC32_LOAD(lanes + lane));
    return crc32_of_sum(sum, data, length);
}
#endif

static inline uint32_t crc32_of(const uint8_t *data, size_t length, uint32_t value) {
    uint32_t crc = ~value;
#if CRC32_BY_VECTORS
    if (length >= CRC32_VECTOR_BYTES_MIN && crc32_has_vectors) {
        size_t whole = length & ~(size_t)15;
        crc = length >= CRC32_WIDE_BYTES_MIN && crc32_has_wide_vectors ? crc32_by_wide_vectors(data, whole, crc)
                                                                       : crc32_by_vectors(data, whole, crc);
        data += whole;
        length -= whole;
    }
#endif
    return ~crc32_by_tables(data, length, crc);
}

/* Of `length` bytes that stand behind those of `front`, and whose own checksum is `rest`. */
static inline uint32_t crc32_behind(uint32_t front, uint32_t rest, uint64_t length) {
    for (int power = 3; length; power++, length >>= 1)
        if (length & 1)
            front = crc32_product(crc32_powers[power & 63], front);
    return front ^ rest;
}

#endif
