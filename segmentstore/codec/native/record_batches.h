/* Record batches (version 2) of a buffer, and their records one by one: record_batch.py has the layout.
 *
 * Invariants: those of record_fields.h; crc32c_prepare() was called.
 */
#ifndef SEGMENTSTORE_RECORD_BATCHES_H
#define SEGMENTSTORE_RECORD_BATCHES_H

#include <stddef.h>
#include <stdint.h>

#include "crc32c.h"
#include "record_fields.h"

#define BATCH_HEADER_BYTES 61
#define BEFORE_LENGTH_ENDS 12
#define MAGIC_AT 16
#define CHECKSUM_AT 17
#define CHECKED_FROM 21
#define MAGIC 2
#define CODEC_BITS 7
#define APPEND_TIME_BIT 8
#define CONTROL_BIT 32

/* The records of one batch that are still to be read. */
typedef struct {
    const uint8_t *at, *end;
    int64_t count, last_delta;
    int64_t base_offset, base_time, last_offset_delta;
    int64_t append_time;
    int has_append_time, codec;
} Records;

typedef struct {
    int64_t offset, time;
    const uint8_t *tail_at, *end;
    Tail tail;
} FoundRecord;

static inline uint64_t big_endian(const uint8_t *data, int bytes) {
    uint64_t number = 0;
    for (int i = 0; i < bytes; i++)
        number = number << 8 | data[i];
    return number;
}

/* The size of the batch at the begin of `left` bytes, whose header makes sense; 0 for any other. */
static inline ptrdiff_t batch_as_told(const uint8_t *batch, ptrdiff_t left, Records *records) {
    if (left < BATCH_HEADER_BYTES || batch[MAGIC_AT] != MAGIC)
        return 0;
    int64_t size = (int64_t)(int32_t)big_endian(batch + 8, 4) + BEFORE_LENGTH_ENDS;
    int attributes = (int)big_endian(batch + 21, 2);
    if (size < BATCH_HEADER_BYTES || size > left || attributes & CONTROL_BIT)
        return 0;
    records->at = batch + BATCH_HEADER_BYTES;
    records->end = batch + size;
    records->last_delta = -1;
    records->base_offset = (int64_t)big_endian(batch, 8);
    records->last_offset_delta = (int32_t)big_endian(batch + 23, 4);
    records->base_time = (int64_t)big_endian(batch + 27, 8);
    records->has_append_time = attributes & APPEND_TIME_BIT;
    records->codec = attributes & CODEC_BITS;
    records->append_time = (int64_t)big_endian(batch + 35, 8);
    records->count = (int32_t)big_endian(batch + 57, 4);
    if (records->count < 1 || records->last_offset_delta < 0 || records->base_offset < 0 ||
        records->base_offset > INT64_MAX - records->last_offset_delta)
        return 0;
    return (ptrdiff_t)size;
}

/* The same of one whose checksum is right as well. */
static inline ptrdiff_t sound_batch(const uint8_t *batch, ptrdiff_t left, Records *records) {
    ptrdiff_t size = batch_as_told(batch, left, records);
    if (size && big_endian(batch + CHECKSUM_AT, 4) != crc32c_of(batch + CHECKED_FROM, (size_t)(size - CHECKED_FROM), 0))
        return 0;
    return size;
}

/* 0 for one that contradicts itself; `records` are then where they were. */
static inline int next_record(Records *records, FoundRecord *found) {
    uint64_t number;
    int padded = 0; /* of what stands in front of the tail it does not matter */
    const uint8_t *place = read_number(records->at, records->end, &number, &padded);
    int64_t length = place ? from_zigzag(number) : -1;
    if (length < 1 || length > records->end - place)
        return 0;
    const uint8_t *end = place + length;
    place = read_number(place + 1, end, &number, &padded);
    if (!place)
        return 0;
    int64_t time = (int64_t)((uint64_t)records->base_time + (uint64_t)from_zigzag(number));
    place = read_number(place, end, &number, &padded);
    int64_t delta = place ? from_zigzag(number) : -1;
    if (delta <= records->last_delta || delta > records->last_offset_delta)
        return 0;
    if (read_tail(place, end, &found->tail) != end)
        return 0;
    found->offset = records->base_offset + delta;
    found->time = records->has_append_time ? records->append_time : time;
    found->tail_at = place;
    found->end = end;
    records->at = end;
    records->last_delta = delta;
    records->count--;
    return 1;
}

#endif
