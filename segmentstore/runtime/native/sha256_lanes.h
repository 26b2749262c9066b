/* SHA-256 of eight contents at a time: each is a lane of 256-bit vectors (AVX-512VL, for its rotations and ternary logic).
 *
 * The instructions that processors have for one content (SHA-NI, which OpenSSL uses) are at their limit with it: two
 * contents in turn take as long as one behind the other. Eight lanes take about as long as five and a half contents.
 *
 * Invariants:
 *
 * - Where sha256_has_lanes gives 0 nothing else here is called.
 * - Nothing but the given bytes is read, in any alignment and any division into buffers; a lane without a content, or
 *   whose content has ended, reads what another lane reads.
 */
#ifndef SEGMENTSTORE_SHA256_LANES_H
#define SEGMENTSTORE_SHA256_LANES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SHA256_BYTES 32
#define SHA256_BLOCK 64
#define SHA256_LANES 8

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define SHA256_BY_LANES 1
#include <immintrin.h>
#define SHA256_TARGET __attribute__((target("avx512f,avx512vl")))

static const uint32_t sha256_constants[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

/* A content that is being hashed. */
typedef struct {
    const Py_buffer *buffer, *end;
    size_t position;                /* in the buffer */
    uint64_t size;                  /* so far */
    uint8_t rest[2 * SHA256_BLOCK]; /* what crosses buffers, and the padding */
    size_t rest_length;
    int is_padded;
    const uint8_t *blocks; /* to be hashed next */
    size_t count;
} Sha256Lane;

static inline int sha256_has_lanes(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
}

static inline void sha256_begin(Sha256Lane *lane, const Py_buffer *buffer, const Py_buffer *end) {
    memset(lane, 0, sizeof *lane);
    lane->buffer = buffer;
    lane->end = end;
}

/* A bit, zeros and the length behind what is left, up to the end of a block. */
static inline void sha256_pad(Sha256Lane *lane) {
    size_t length = lane->rest_length;
    size_t whole = length + 9 <= SHA256_BLOCK ? SHA256_BLOCK : 2 * SHA256_BLOCK;
    uint64_t bits = lane->size * 8;
    memset(lane->rest + length, 0, whole - length);
    lane->rest[length] = 0x80;
    for (size_t i = 1; i <= 8; i++, bits >>= 8)
        lane->rest[whole - i] = (uint8_t)bits;
    lane->blocks = lane->rest;
    lane->count = whole / SHA256_BLOCK;
    lane->is_padded = 1;
}

/* The next whole blocks that lie one behind the other. 0: there are none, the content has ended. */
static inline int sha256_next(Sha256Lane *lane) {
    if (lane->is_padded)
        return 0;
    while (lane->buffer < lane->end) {
        const uint8_t *data = (const uint8_t *)lane->buffer->buf + lane->position;
        size_t left = (size_t)lane->buffer->len - lane->position;
        if (!lane->rest_length && left >= SHA256_BLOCK) {
            lane->blocks = data;
            lane->count = left / SHA256_BLOCK;
            lane->position += lane->count * SHA256_BLOCK;
            lane->size += lane->count * SHA256_BLOCK;
            return 1;
        }
        size_t room = SHA256_BLOCK - lane->rest_length, taken = left < room ? left : room;
        if (taken)
            memcpy(lane->rest + lane->rest_length, data, taken);
        lane->rest_length += taken;
        lane->position += taken;
        lane->size += taken;
        if (taken == left) {
            lane->buffer++;
            lane->position = 0;
        }
        if (lane->rest_length == SHA256_BLOCK) {
            lane->rest_length = 0;
            lane->blocks = lane->rest;
            lane->count = 1;
            return 1;
        }
    }
    sha256_pad(lane);
    return 1;
}

#define SHA256_ROTATED(x, a, b, c) \
    _mm256_ternarylogic_epi32(_mm256_ror_epi32(x, a), _mm256_ror_epi32(x, b), _mm256_ror_epi32(x, c), 0x96)
#define SHA256_SHIFTED(x, a, b, c) \
    _mm256_ternarylogic_epi32(_mm256_ror_epi32(x, a), _mm256_ror_epi32(x, b), _mm256_srli_epi32(x, c), 0x96)
#define SHA256_CHOICE 0xCA
#define SHA256_MAJORITY 0xE8

/* Eight words of each lane, from `offset` of its block on: word by word instead of lane by lane. */
SHA256_TARGET static inline void sha256_words(const uint8_t *const *blocks, size_t offset, __m256i *words) {
    const __m256i order = _mm256_set_epi64x(
        0x0C0D0E0F08090A0B, 0x0405060700010203, 0x0C0D0E0F08090A0B, 0x0405060700010203);
    __m256i rows[8], pairs[8], fours[8];
    for (int i = 0; i < 8; i++)
        rows[i] = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)(const void *)(blocks[i] + offset)), order);
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            fours[i + 2 * j] = _mm256_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
            fours[i + 2 * j + 1] = _mm256_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
        }
    for (int i = 0; i < 4; i++) {
        words[i] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x20);
        words[i + 4] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x31);
    }
}

/* One block of each lane. */
SHA256_TARGET static inline void sha256_block(const uint8_t *const *blocks, __m256i *state) {
    __m256i words[16];
    sha256_words(blocks, 0, words);
    sha256_words(blocks, 32, words + 8);
    __m256i a = state[0], b = state[1], c = state[2], d = state[3];
    __m256i e = state[4], f = state[5], g = state[6], h = state[7];
    for (int first = 0; first < 64; first += 16)
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            if (first)
                words[i] = _mm256_add_epi32(
                    _mm256_add_epi32(words[i], SHA256_SHIFTED(words[(i + 1) & 15], 7, 18, 3)),
                    _mm256_add_epi32(words[(i + 9) & 15], SHA256_SHIFTED(words[(i + 14) & 15], 17, 19, 10)));
            __m256i sum = _mm256_add_epi32(h, _mm256_set1_epi32((int)sha256_constants[first + i]));
            sum = _mm256_add_epi32(_mm256_add_epi32(sum, words[i]), _mm256_ternarylogic_epi32(e, f, g, SHA256_CHOICE));
            sum = _mm256_add_epi32(sum, SHA256_ROTATED(e, 6, 11, 25));
            __m256i other = _mm256_add_epi32(
                SHA256_ROTATED(a, 2, 13, 22), _mm256_ternarylogic_epi32(a, b, c, SHA256_MAJORITY));
            h = g;
            g = f;
            f = e;
            e = _mm256_add_epi32(d, sum);
            d = c;
            c = b;
            b = a;
            a = _mm256_add_epi32(sum, other);
        }
    const __m256i ends[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++)
        state[i] = _mm256_add_epi32(state[i], ends[i]);
}

static inline void sha256_take(const __m256i *state, int lane, unsigned char *hash) {
    for (int i = 0; i < 8; i++) {
        uint32_t words[SHA256_LANES];
        memcpy(words, &state[i], sizeof words);
        for (int j = 0; j < 4; j++)
            hash[4 * i + j] = (unsigned char)(words[lane] >> (24 - 8 * j));
    }
}

/* The hashes of `count` contents, at most SHA256_LANES and at least one, whose lanes have begun. */
SHA256_TARGET static void sha256_hash_lanes(Sha256Lane *lanes, int count, unsigned char *const *hashes) {
    static const uint32_t initial[8] = {
        0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
    };
    __m256i state[8];
    const uint8_t *blocks[SHA256_LANES];
    int has_ended[SHA256_LANES] = {0}, left = count;
    for (int i = 0; i < 8; i++)
        state[i] = _mm256_set1_epi32((int)initial[i]);
    for (int i = 0; i < count; i++)
        sha256_next(&lanes[i]); /* the padding at least */
    while (left) {
        const Sha256Lane *shortest = NULL;
        for (int i = 0; i < count; i++)
            if (!has_ended[i] && (!shortest || lanes[i].count < shortest->count))
                shortest = &lanes[i];
        size_t step = shortest->count;
        for (int i = 0; i < SHA256_LANES; i++)
            blocks[i] = i < count && !has_ended[i] ? lanes[i].blocks : shortest->blocks;
        for (size_t j = 0; j < step; j++) {
            sha256_block(blocks, state);
            for (int i = 0; i < SHA256_LANES; i++)
                blocks[i] += SHA256_BLOCK;
        }
        for (int i = 0; i < count; i++) {
            if (has_ended[i])
                continue;
            lanes[i].blocks += step * SHA256_BLOCK;
            lanes[i].count -= step;
            if (lanes[i].count || sha256_next(&lanes[i]))
                continue;
            sha256_take(state, i, hashes[i]);
            has_ended[i] = 1;
            left--;
        }
    }
}

#else
#define SHA256_BY_LANES 0
static inline int sha256_has_lanes(void) { return 0; }
#endif
#endif
