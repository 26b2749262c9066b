/* The walk over plain records of a stretch of a volume (rebuild.py), with its checksums outside of the interpreter.
 *
 * walk(content, start, volume, seed, rows, take_other) does what its twin `walk_in_python` of rebuild.py does. Records
 * are looked at a few at a time: their headers, checksums and places first, without the interpreter; then, while
 * the processor still has them at hand, their keys and rows, with it.
 *
 * Invariants:
 *
 * - Nothing outside of `content` is read or written, whatever its bytes say: a place is used only after its end was
 *   found to lie in it, and is not read again.
 * - What is not plain is left to `take_other`, and what is bad, or cut off, ends the walk: the scan says what it is.
 * - The layouts are those of volume_format.py and index.py; big-endian.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "crc32.h"

#define ALIGNMENT 8
#define HEADER_BYTES 48
#define CHECKED_FROM 8
#define FRONT_BYTES 82
#define ROW_NUMBERS_BYTES 24
#define ROW_CHECKSUM_BYTES 4
#define ROW_BYTES_BEFORE (ROW_CHECKSUM_BYTES + ROW_NUMBERS_BYTES) /* a record's header has room for them */
#define ROW_FORMAT 2 /* of index_database.py: rows with their checksums in front */
#define PLAIN_PUT 1
#define INLINE_ONLY 0x01200000u
#define RECORDS_AT_ONCE 256

typedef struct {
    size_t header, key, front, end;
    uint32_t index_record_length;
    uint32_t group_left;
    uint64_t sequence;
    uint8_t row[ROW_BYTES_BEFORE]; /* the checksum and the numbers of its row */
} Place;

typedef enum { GOES_ON, MEETS_OTHER, ENDS } State;

/* What stands before a record that is no plain one: how far it reaches, and how many of its batch follow. */
typedef struct {
    size_t following;
    uint32_t group_left;
} Other;

typedef struct {
    uint64_t rows, others, bytes, lowest, highest;
} Sums;

static inline uint64_t number_at(const uint8_t *data, int bytes) {
    uint64_t number = 0;
    for (int i = 0; i < bytes; i++)
        number = number << 8 | data[i];
    return number;
}

static inline void write_number(uint8_t *data, uint64_t number, int bytes) {
    for (int i = bytes - 1; i >= 0; i--, number >>= 8)
        data[i] = (uint8_t)number;
}

/* What stands in a row before the record, whose bytes are in the processor's memory at this moment. */
static inline void number_row(const uint8_t *content, Place *at, uint64_t start, uint32_t volume) {
    uint8_t *numbers = at->row + ROW_CHECKSUM_BYTES;
    write_number(numbers, volume, 4);
    write_number(numbers + 4, start + at->header, 8);
    write_number(numbers + 12, at->end - at->header, 8);
    write_number(numbers + 20, at->index_record_length, 4);
    uint32_t crc = crc32_of((const uint8_t *)"o", 1, 0);
    crc = crc32_of(content + at->key, at->front - at->key, crc);
    crc = crc32_of(numbers, ROW_NUMBERS_BYTES, crc);
    crc = crc32_of(content + at->front, at->end - at->front, crc);
    write_number(at->row, crc, ROW_CHECKSUM_BYTES);
}

/* Looks at records from `*position` on, until there are enough places, or there is one to leave to Python. */
static State look(
    const uint8_t *content, size_t size, uint64_t start, uint32_t volume, uint32_t seed, size_t *position, Place *places,
    int *count, Other *other
) {
    *count = 0;
    while (*count < RECORDS_AT_ONCE) {
        size_t header = *position, key = header + HEADER_BYTES;
        if (header > size || size - header < HEADER_BYTES)
            return ENDS;
        const uint8_t *fields = content + header;
        if (memcmp(fields, "S4rc", 4) != 0 ||
            number_at(fields + 4, 4) != crc32_of(fields + CHECKED_FROM, HEADER_BYTES - CHECKED_FROM, seed))
            return ENDS;
        uint64_t key_length = number_at(fields + 20, 4), blob_length = number_at(fields + 24, 8);
        uint64_t length = number_at(fields + 36, 4), body_length = key_length + length;
        /* Each is compared with what is left, so that no sum can run over. */
        size_t left = size - key;
        if (body_length > left || blob_length > left - body_length)
            return ENDS;
        size_t front = key + (size_t)key_length, end = key + (size_t)(body_length + blob_length);
        size_t padding = (ALIGNMENT - (end - header) % ALIGNMENT) % ALIGNMENT;
        if (padding > size - end)
            return ENDS;
        uint64_t sequence = number_at(fields + 40, 8);
        uint32_t group_left = (uint32_t)number_at(fields + 34, 2);
        const uint8_t *record = content + front;
        if (number_at(fields + 32, 2) != PLAIN_PUT || length < FRONT_BYTES || number_at(record, 4) != INLINE_ONLY ||
            number_at(record + 80, 2) != 0 || number_at(record + 4, 8) != blob_length ||
            number_at(record + 12, 8) != sequence) {
            other->following = end + padding;
            other->group_left = group_left;
            return MEETS_OTHER;
        }
        if (number_at(fields + 8, 4) != crc32_of(content + key, end - key, seed))
            return ENDS;
        Place *place = &places[(*count)++];
        *place = (Place){header, key, front, end, (uint32_t)length, group_left, sequence, {0}};
        number_row(content, place, start, volume);
        *position = end + padding;
    }
    return GOES_ON;
}

/* What rows are views of: it lends the memory of `content` for as long as one of them is there. */
typedef struct {
    PyObject_HEAD
    Py_buffer buffer;
} Stretch;

/* Some of its bytes, to read. A memoryview of its own for each row would cost five times as much. */
typedef struct {
    PyObject_HEAD
    Stretch *stretch;
    size_t first, end;
} Piece;

static void stretch_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyBuffer_Release(&((Stretch *)self)->buffer);
    PyObject_Free(self);
    Py_DECREF(type);
}

static void piece_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_DECREF(((Piece *)self)->stretch);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int piece_lend(PyObject *self, Py_buffer *view, int flags) {
    Piece *piece = (Piece *)self;
    uint8_t *bytes = piece->stretch->buffer.buf;
    return PyBuffer_FillInfo(view, self, bytes + piece->first, (Py_ssize_t)(piece->end - piece->first), 1, flags);
}

static Py_ssize_t piece_length(PyObject *self) { return (Py_ssize_t)(((Piece *)self)->end - ((Piece *)self)->first); }

static PyType_Slot stretch_slots[] = {{Py_tp_dealloc, (void *)stretch_free}, {0, NULL}};
static PyType_Spec stretch_spec = {
    "tier2.volumes.native.record_walk.Stretch", sizeof(Stretch), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, stretch_slots,
};
static PyType_Slot piece_slots[] = {
    {Py_tp_dealloc, (void *)piece_free},
    {Py_bf_getbuffer, (void *)piece_lend},
    {Py_sq_length, (void *)piece_length},
    {0, NULL},
};
static PyType_Spec piece_spec = {
    "tier2.volumes.native.record_walk.Piece", sizeof(Piece), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, piece_slots,
};

typedef struct {
    PyTypeObject *stretch, *piece;
} Types;

static PyObject *piece_of(PyTypeObject *type, Stretch *stretch, size_t first, size_t end) {
    Piece *piece = PyObject_New(Piece, type);
    if (!piece)
        return NULL;
    piece->stretch = (Stretch *)Py_NewRef((PyObject *)stretch);
    piece->first = first;
    piece->end = end;
    return (PyObject *)piece;
}

/* The row of a record in its place: its key is read before checksum and numbers are written over it. */
static int add_row(PyTypeObject *type, Stretch *stretch, const Place *at, PyObject *rows) {
    uint8_t *bytes = stretch->buffer.buf;
    size_t key_length = at->front - at->key;
    PyObject *key = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)key_length + 1);
    PyObject *piece = piece_of(type, stretch, at->front - ROW_BYTES_BEFORE, at->end);
    PyObject *row = key && piece ? PyTuple_Pack(2, key, piece) : NULL;
    int failed = -1;
    if (row) {
        /* It can be part of no cycle. */
        PyObject_GC_UnTrack(row);
        char *to = PyBytes_AS_STRING(key);
        to[0] = 'o';
        memcpy(to + 1, bytes + at->key, key_length);
        memcpy(bytes + at->front - ROW_BYTES_BEFORE, at->row, ROW_BYTES_BEFORE);
        failed = PyList_Append(rows, row);
    }
    Py_XDECREF(row);
    Py_XDECREF(piece);
    Py_XDECREF(key);
    return failed;
}

/* 1: it was taken, 0: it is bad, -1: raised. */
static int take_other(PyObject *take, uint64_t offset) {
    PyObject *taken = PyObject_CallFunction(take, "K", (unsigned long long)offset);
    int answer = taken ? PyObject_IsTrue(taken) : -1;
    Py_XDECREF(taken);
    return answer;
}

static PyObject *walk_over(
    PyTypeObject *type, Stretch *stretch, uint64_t start, uint32_t volume, uint32_t seed, PyObject *rows, PyObject *take
) {
    uint8_t *bytes = stretch->buffer.buf;
    size_t size = (size_t)stretch->buffer.len, position = 0, end = 0;
    Sums sums = {0, 0, 0, UINT64_MAX, 0}, kept = sums;
    uint64_t groups = 0;
    State state = GOES_ON;
    Place places[RECORDS_AT_ONCE];
    while (state != ENDS) {
        Other other = {0, 0};
        int count;
        Py_BEGIN_ALLOW_THREADS
        state = look(bytes, size, start, volume, seed, &position, places, &count, &other);
        Py_END_ALLOW_THREADS
        for (int i = 0; i < count; i++) {
            const Place *at = &places[i];
            if (add_row(type, stretch, at, rows) < 0)
                return NULL;
            sums.rows++;
            sums.bytes += at->end - at->header;
            if (at->sequence < sums.lowest)
                sums.lowest = at->sequence;
            if (at->sequence > sums.highest)
                sums.highest = at->sequence;
            if (at->group_left == 0) {
                groups++;
                kept = sums;
                end = i + 1 < count ? places[i + 1].header : position;
            }
        }
        if (state != MEETS_OTHER)
            continue;
        int taken = take_other(take, start + position);
        if (taken < 0)
            return NULL;
        if (!taken)
            break;
        sums.others++;
        position = other.following;
        if (other.group_left == 0) {
            groups++;
            kept = sums;
            end = position;
        }
    }
    return Py_BuildValue(
        "KKKKKKK", (unsigned long long)groups, (unsigned long long)(start + end), (unsigned long long)kept.rows,
        (unsigned long long)kept.others, (unsigned long long)kept.bytes, (unsigned long long)kept.lowest,
        (unsigned long long)kept.highest
    );
}

static PyObject *walk(PyObject *module, PyObject *arguments) {
    PyObject *content, *rows, *take;
    unsigned long long start;
    unsigned int volume, seed;
    if (!PyArg_ParseTuple(
            arguments, "OKIIO!O:walk", &content, &start, &volume, &seed, &PyList_Type, &rows, &take
        ))
        return NULL;
    Types *types = PyModule_GetState(module);
    Stretch *stretch = PyObject_New(Stretch, types->stretch);
    if (!stretch)
        return NULL;
    stretch->buffer.obj = NULL;
    PyObject *sums = NULL;
    if (PyObject_GetBuffer(content, &stretch->buffer, PyBUF_WRITABLE) == 0)
        sums = walk_over(types->piece, stretch, start, volume, seed, rows, take);
    Py_DECREF(stretch);
    return sums;
}

static PyMethodDef methods[] = {
    {"walk", walk, METH_VARARGS, "See rebuild.py."},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module) {
    Types *types = PyModule_GetState(module);
    crc32_prepare();
    types->stretch = (PyTypeObject *)PyType_FromSpec(&stretch_spec);
    types->piece = (PyTypeObject *)PyType_FromSpec(&piece_spec);
    if (!types->stretch || !types->piece)
        return -1;
    return PyModule_AddIntConstant(module, "ROW_FORMAT", ROW_FORMAT);
}

static void release(void *module) {
    Types *types = PyModule_GetState((PyObject *)module);
    if (!types)
        return;
    Py_CLEAR(types->stretch);
    Py_CLEAR(types->piece);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)prepare}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "record_walk", NULL, sizeof(Types), methods, slots, NULL, NULL, release,
};

PyMODINIT_FUNC PyInit_record_walk(void) { return PyModuleDef_Init(&definition); }
