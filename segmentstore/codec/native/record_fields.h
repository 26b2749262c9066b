/* The fields of one record, as batches of version 2 and blocks of files have them: numbers, and the tail behind them.
 *
 *     number     varint: 7 bits in each byte, the lowest first, at most 10 bytes and 64 bits
 *     zigzag     0, -1, 1, -2, 2 ... are the numbers 0, 1, 2, 3, 4 ...
 *     tail       key, value, header count, headers: key length to last header, the same bytes in both forms
 *
 * Invariants:
 *
 * - Nothing outside of [at, end) is read: each length is compared with what is left before it is used.
 * - What read_ functions accept is what the twin in Python accepts (record_fields.py). They give NULL for the rest, and
 *   the place behind otherwise.
 */
#ifndef SEGMENTSTORE_RECORD_FIELDS_H
#define SEGMENTSTORE_RECORD_FIELDS_H

#include <stddef.h>
#include <stdint.h>

#define NUMBER_BYTES_MAX 10

/* `padded` is set, never cleared, if the number has more bytes than it needs. */
static inline const uint8_t *read_number(const uint8_t *at, const uint8_t *end, uint64_t *number, int *padded) {
    if (at < end && *at < 0x80) {
        *number = *at;
        return at + 1;
    }
    uint64_t value = 0;
    for (int place = 0; place < NUMBER_BYTES_MAX && at < end; place++) {
        uint8_t byte = *at++;
        if (place == NUMBER_BYTES_MAX - 1 && byte > 1)
            return NULL;
        value |= (uint64_t)(byte & 0x7F) << (7 * place);
        if (byte < 0x80) {
            if (byte == 0 && place > 0)
                *padded = 1;
            *number = value;
            return at;
        }
    }
    return NULL;
}

static inline int64_t from_zigzag(uint64_t number) { return (int64_t)(number >> 1 ^ (0 - (number & 1))); }

static inline uint64_t to_zigzag(int64_t number) { return (uint64_t)number << 1 ^ (number < 0 ? UINT64_MAX : 0); }

static inline int number_bytes(uint64_t number) {
    int bytes = 1;
    for (; number > 0x7F; number >>= 7)
        bytes++;
    return bytes;
}

static inline uint8_t *write_varint(uint8_t *to, uint64_t number) {
    for (; number > 0x7F; number >>= 7)
        *to++ = (uint8_t)(number & 0x7F) | 0x80;
    *to++ = (uint8_t)number;
    return to;
}

/* Some counted bytes; a length of -1 stands for null, with `length` -1 and `place` where nothing is. */
static inline const uint8_t *read_counted(
    const uint8_t *at, const uint8_t *end, const uint8_t **place, int64_t *length, int *padded
) {
    uint64_t number;
    at = read_number(at, end, &number, padded);
    if (!at)
        return NULL;
    *length = from_zigzag(number);
    *place = at;
    if (*length < 0)
        return *length == -1 ? at : NULL;
    return *length <= end - at ? at + *length : NULL;
}

typedef struct {
    const uint8_t *key, *value, *headers; /* the headers' count is where `headers` is */
    int64_t key_length, value_length;
    int padded; /* a number of it has more bytes than it needs */
} Tail;

/* Ends anywhere up to `end`. */
static inline const uint8_t *read_tail(const uint8_t *at, const uint8_t *end, Tail *tail) {
    uint64_t number;
    tail->padded = 0;
    at = read_counted(at, end, &tail->key, &tail->key_length, &tail->padded);
    if (!at)
        return NULL;
    at = read_counted(at, end, &tail->value, &tail->value_length, &tail->padded);
    if (!at)
        return NULL;
    tail->headers = at;
    at = read_number(at, end, &number, &tail->padded);
    if (!at)
        return NULL;
    int64_t count = from_zigzag(number);
    if (count < 0 || count > (end - at) / 2)
        return NULL;
    for (; count; count--) {
        const uint8_t *place;
        int64_t length;
        at = read_counted(at, end, &place, &length, &tail->padded);
        if (!at || length < 0)
            return NULL;
        at = read_counted(at, end, &place, &length, &tail->padded);
        if (!at)
            return NULL;
    }
    return at;
}

#endif
