/* Records of batches (version 2) to records of a file's blocks, and back: the loops of record_transcoding.py.
 *
 * batches_to_block, records_to_block and block_to_batches do what their twins of the same names do there, byte for byte. The
 * two forms of a record differ in front of its key alone, so a record is turned by two numbers and a copy.
 *
 * Invariants:
 *
 * - Nothing outside of the given buffers is read or written, whatever their bytes say; a record that does not fit what is
 *   left of `out` is not begun.
 * - What is unusual (a batch that contradicts itself or does not fit, numbers that are longer than they need be) is left
 *   to Python, which says what is wrong with it; so is decompression. The sums are then as they were before that batch.
 * - The interpreter is given away while records are turned; the buffers are held meanwhile, so nothing can resize them.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "crc32c.h"
#include "record_batches.h"
#include "record_fields.h"

#define DELTA_MAX INT32_MAX
#define FACTS 5

typedef enum { DONE, FULL, OTHER, COMPRESSED } Stop;

/* What is known of a block, and where it goes on. Without a record the numbers mean nothing. */
typedef struct {
    Py_ssize_t used;
    long long count, first_offset, last_offset, last_time, lowest_time, highest_time;
} Sums;

static inline void write_big_endian(uint8_t *data, uint64_t number, int bytes) {
    for (int i = bytes - 1; i >= 0; i--, number >>= 8)
        data[i] = (uint8_t)number;
}

/* --- batches to blocks -------------------------------------------------------------------------- */

/* Turns records until none is left (DONE), the block has `bytes_stop` bytes (FULL), or one is bad or finds no room (OTHER). */
static Stop turn_records(Records *records, uint8_t *out, Py_ssize_t room, Py_ssize_t bytes_stop, Sums *sums) {
    Sums now = *sums;
    Records left = *records;
    Stop stop = DONE;
    while (left.count) {
        FoundRecord found;
        if (now.count && now.used >= bytes_stop) {
            stop = FULL;
            break;
        }
        if (!next_record(&left, &found) || found.tail.padded)
            return OTHER;
        ptrdiff_t length = found.end - found.tail_at;
        if (2 * NUMBER_BYTES_MAX + length > room - now.used || (now.count && found.offset <= now.last_offset))
            return OTHER;
        uint8_t *to = out + now.used;
        to = write_varint(to, (uint64_t)found.offset - (now.count ? (uint64_t)now.last_offset : 0));
        to = write_varint(to, to_zigzag((int64_t)((uint64_t)found.time - (now.count ? (uint64_t)now.last_time : 0))));
        memcpy(to, found.tail_at, (size_t)length);
        if (!now.count)
            now.first_offset = found.offset;
        if (!now.count || found.time < now.lowest_time)
            now.lowest_time = found.time;
        if (!now.count || found.time > now.highest_time)
            now.highest_time = found.time;
        now.last_offset = found.offset;
        now.last_time = found.time;
        now.used = to + length - out;
        now.count++;
    }
    if (stop == DONE && left.at != left.end)
        return OTHER;
    *sums = now;
    *records = left;
    return stop;
}

static Stop turn_batches(
    const uint8_t *batches, Py_ssize_t length, Py_ssize_t *position, uint8_t *out, Py_ssize_t room, Py_ssize_t target,
    Sums *sums, Records *met
) {
    while (*position < length) {
        Records records;
        Py_ssize_t size = sound_batch(batches + *position, length - *position, &records);
        if (!size)
            return OTHER;
        if (records.codec) {
            *met = records;
            return COMPRESSED;
        }
        if (sums->count && sums->used + (size - BATCH_HEADER_BYTES) - target > target - sums->used)
            return FULL;
        if (turn_records(&records, out, room, PY_SSIZE_T_MAX, sums) != DONE)
            return OTHER;
        *position += size;
    }
    return DONE;
}

#define SUMS_FORMAT "(nLLLLLL)"
#define SUMS_PLACES(sums) \
    &(sums).used, &(sums).count, &(sums).first_offset, &(sums).last_offset, &(sums).last_time, &(sums).lowest_time, \
        &(sums).highest_time
#define SUMS_VALUES(sums) \
    (sums).used, (sums).count, (sums).first_offset, (sums).last_offset, (sums).last_time, (sums).lowest_time, \
        (sums).highest_time

static int sums_fit(const Sums *sums, Py_ssize_t position, const Py_buffer *from, const Py_buffer *out) {
    if (position >= 0 && position <= from->len && sums->used >= 0 && sums->used <= out->len && sums->count >= 0)
        return 1;
    PyErr_SetString(PyExc_ValueError, "a position lies outside of its buffer");
    return 0;
}

static PyObject *batches_to_block(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer batches, out;
    Py_ssize_t position, target;
    Sums sums;
    if (!PyArg_ParseTuple(
            arguments, "y*nw*n" SUMS_FORMAT ":batches_to_block", &batches, &position, &out, &target, SUMS_PLACES(sums)
        ))
        return NULL;
    PyObject *answer = NULL;
    if (sums_fit(&sums, position, &batches, &out)) {
        Stop stop;
        Records met = {.at = NULL};
        Py_BEGIN_ALLOW_THREADS
        stop = turn_batches(batches.buf, batches.len, &position, out.buf, out.len, target, &sums, &met);
        Py_END_ALLOW_THREADS
        if (stop == COMPRESSED) {
            Py_ssize_t body_end = met.end - (const uint8_t *)batches.buf;
            PyObject *append_time =
                met.has_append_time ? PyLong_FromLongLong((long long)met.append_time) : Py_NewRef(Py_None);
            answer = append_time ? Py_BuildValue(
                "in" SUMS_FORMAT "(niLLLLN)", (int)stop, position, SUMS_VALUES(sums), body_end, met.codec,
                (long long)met.count, (long long)met.base_offset, (long long)met.base_time,
                (long long)met.last_offset_delta, append_time
            ) : NULL;
        } else {
            answer = Py_BuildValue("in" SUMS_FORMAT "O", (int)stop, position, SUMS_VALUES(sums), Py_None);
        }
    }
    PyBuffer_Release(&batches);
    PyBuffer_Release(&out);
    return answer;
}

static PyObject *records_to_block(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer content, out;
    Py_ssize_t position, bytes_stop;
    PyObject *append_time;
    long long left, last_delta, base_offset, base_time, last_offset_delta;
    Sums sums;
    if (!PyArg_ParseTuple(
            arguments, "y*(nLL)LLLOw*n" SUMS_FORMAT ":records_to_block", &content, &position, &left, &last_delta,
            &base_offset, &base_time, &last_offset_delta, &append_time, &out, &bytes_stop, SUMS_PLACES(sums)
        ))
        return NULL;
    PyObject *answer = NULL;
    const uint8_t *first = content.buf;
    Records records = {
        .count = left, .last_delta = last_delta, .base_offset = base_offset, .base_time = base_time,
        .last_offset_delta = last_offset_delta, .has_append_time = append_time != Py_None,
    };
    if (records.has_append_time)
        records.append_time = PyLong_AsLongLong(append_time);
    int is_placed = base_offset >= 0 && last_offset_delta >= 0 && base_offset <= INT64_MAX - last_offset_delta;
    if (!PyErr_Occurred() && sums_fit(&sums, position, &content, &out)) {
        Stop stop = OTHER;
        records.at = first + position;
        records.end = first + content.len;
        if (left >= 0 && is_placed) {
            Py_BEGIN_ALLOW_THREADS
            stop = turn_records(&records, out.buf, out.len, bytes_stop, &sums);
            Py_END_ALLOW_THREADS
        }
        answer = Py_BuildValue(
            "i(nLL)" SUMS_FORMAT, (int)stop, (Py_ssize_t)(records.at - first), (long long)records.count,
            (long long)records.last_delta, SUMS_VALUES(sums)
        );
    }
    PyBuffer_Release(&content);
    PyBuffer_Release(&out);
    return answer;
}

/* --- blocks to batches -------------------------------------------------------------------------- */

/* A batch that is being made. `begin` counts from the first byte of all batches. */
typedef struct {
    size_t begin;
    int64_t base_offset, base_time, last_offset, highest_time, count;
} Batch;

static void write_header(uint8_t *batches, const Batch *batch, size_t end, int append_time) {
    uint8_t *header = batches + batch->begin;
    write_big_endian(header, (uint64_t)batch->base_offset, 8);
    write_big_endian(header + 8, end - batch->begin - BEFORE_LENGTH_ENDS, 4);
    memset(header + 12, 0xFF, 4); /* no leader epoch */
    header[MAGIC_AT] = MAGIC;
    write_big_endian(header + 21, append_time ? APPEND_TIME_BIT : 0, 2);
    write_big_endian(header + 23, (uint64_t)(batch->last_offset - batch->base_offset), 4);
    write_big_endian(header + 27, (uint64_t)batch->base_time, 8);
    write_big_endian(header + 35, (uint64_t)batch->highest_time, 8);
    memset(header + 43, 0xFF, 14); /* no producer */
    write_big_endian(header + 57, (uint64_t)batch->count, 4);
    size_t checked = end - batch->begin - CHECKED_FROM;
    write_big_endian(header + CHECKSUM_AT, crc32c_of(header + CHECKED_FROM, checked, 0), 4);
}

/* Bytes of all batches, which are written if there is `out`; -1 for a block that contradicts itself, or finds no room. */
static Py_ssize_t turn_block(
    const uint8_t *at, const uint8_t *end, int append_time, size_t bytes_max, uint8_t *out, size_t room, int64_t facts[FACTS]
) {
    Batch batch = {0, 0, 0, 0, 0, 0};
    size_t used = 0;
    int64_t offset = 0, time = 0, lowest = 0, highest = 0, first = 0, total = 0;
    for (; at < end; total++) {
        uint64_t delta, number;
        int padded = 0;
        Tail tail;
        at = read_number(at, end, &delta, &padded);
        if (!at || delta > (uint64_t)(INT64_MAX - offset) || (total && !delta))
            return -1;
        offset += (int64_t)delta;
        at = read_number(at, end, &number, &padded);
        if (!at)
            return -1;
        time = (int64_t)((uint64_t)time + (uint64_t)from_zigzag(number));
        const uint8_t *behind = read_tail(at, end, &tail);
        if (!behind || padded || tail.padded)
            return -1;
        size_t tail_bytes = (size_t)(behind - at);
        int64_t time_delta = (int64_t)((uint64_t)time - (uint64_t)batch.base_time);
        int64_t offset_delta = offset - batch.base_offset;
        size_t body = 1 + (size_t)number_bytes(to_zigzag(append_time ? 0 : time_delta)) +
                      (size_t)number_bytes(to_zigzag(offset_delta)) + tail_bytes;
        size_t whole = body + (size_t)number_bytes(to_zigzag((int64_t)body));
        if (!batch.count || offset_delta > DELTA_MAX || used - batch.begin + whole > bytes_max ||
            batch.count == DELTA_MAX || (append_time && time_delta)) {
            if (batch.count && out)
                write_header(out, &batch, used, append_time);
            batch = (Batch){used, offset, time, offset, time, 0};
            used += BATCH_HEADER_BYTES;
            if (out && used > room)
                return -1;
            time_delta = offset_delta = 0;
            body = 3 + tail_bytes;
            whole = body + (size_t)number_bytes(to_zigzag((int64_t)body));
        }
        if (out) {
            if (whole > room - used)
                return -1;
            uint8_t *to = write_varint(out + used, to_zigzag((int64_t)body));
            *to++ = 0;
            to = write_varint(to, to_zigzag(time_delta));
            to = write_varint(to, to_zigzag(offset_delta));
            memcpy(to, at, tail_bytes);
        }
        used += whole;
        batch.last_offset = offset;
        batch.count++;
        if (time > batch.highest_time)
            batch.highest_time = time;
        if (!total) {
            first = offset;
            lowest = highest = time;
        }
        lowest = time < lowest ? time : lowest;
        highest = time > highest ? time : highest;
        at = behind;
    }
    if (batch.count && out)
        write_header(out, &batch, used, append_time);
    facts[0] = total;
    facts[1] = first;
    facts[2] = offset;
    facts[3] = lowest;
    facts[4] = highest;
    return total ? (Py_ssize_t)used : -1;
}

#define FACTS_FORMAT "(LLLLL)"
#define FACTS_VALUES(facts) \
    (long long)(facts)[0], (long long)(facts)[1], (long long)(facts)[2], (long long)(facts)[3], (long long)(facts)[4]

static PyObject *facts_of_block(PyObject *module, PyObject *given) {
    (void)module;
    Py_buffer block;
    Py_ssize_t size;
    int64_t facts[FACTS] = {0, 0, 0, 0, 0};
    if (PyObject_GetBuffer(given, &block, PyBUF_SIMPLE) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    size = turn_block(block.buf, (const uint8_t *)block.buf + block.len, 0, DELTA_MAX, NULL, 0, facts);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&block);
    return size < 0 ? Py_NewRef(Py_None) : Py_BuildValue(FACTS_FORMAT, FACTS_VALUES(facts));
}

static PyObject *block_to_batches(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer block;
    int append_time;
    Py_ssize_t bytes_max, size;
    int64_t facts[FACTS] = {0, 0, 0, 0, 0};
    if (!PyArg_ParseTuple(arguments, "y*pn:block_to_batches", &block, &append_time, &bytes_max))
        return NULL;
    const uint8_t *first = block.buf, *end = first + block.len;
    PyObject *batches = NULL, *answer = NULL;
    size_t most = bytes_max > 0 ? (size_t)bytes_max : 0;
    Py_BEGIN_ALLOW_THREADS
    size = turn_block(first, end, append_time, most, NULL, 0, facts);
    Py_END_ALLOW_THREADS
    if (size < 0) {
        answer = Py_NewRef(Py_None);
    } else if ((batches = PyBytes_FromStringAndSize(NULL, size))) {
        uint8_t *out = (uint8_t *)PyBytes_AS_STRING(batches);
        Py_ssize_t written;
        Py_BEGIN_ALLOW_THREADS
        written = turn_block(first, end, append_time, most, out, (size_t)size, facts);
        Py_END_ALLOW_THREADS
        /* Not so only if another thread writes into the block meanwhile. */
        answer = written != size ? Py_NewRef(Py_None) : Py_BuildValue(
            "O" FACTS_FORMAT, batches, FACTS_VALUES(facts)
        );
        Py_DECREF(batches);
    }
    PyBuffer_Release(&block);
    return answer;
}

static PyMethodDef methods[] = {
    {"batches_to_block", batches_to_block, METH_VARARGS, "See record_transcoding.py."},
    {"records_to_block", records_to_block, METH_VARARGS, "See record_transcoding.py."},
    {"block_to_batches", block_to_batches, METH_VARARGS, "See record_transcoding.py."},
    {"facts_of_block", facts_of_block, METH_O, "See record_transcoding.py."},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module) {
    (void)module;
    crc32c_prepare();
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)prepare}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "record_transcoding", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_record_transcoding(void) { return PyModuleDef_Init(&definition); }
