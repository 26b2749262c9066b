/* Small objects out of their rows, by one call for a batch (reader.py): what most gets ask for.
 *
 * small_objects(contents, record_type, stored_type) takes apart each content that is the row of an object whose bytes
 * stand in it: one piece, no lock, no delete marker. It is answered by a `stored_type` with its record and its bytes, which
 * were held against their checksum. All else is answered by None, and is for the twin to judge: what is no row, what is
 * damaged, what has its bytes in a volume. The twin is what look-ups do without this (`ObjectReader.look_up`): same answers.
 *
 * Invariants:
 *
 * - A row is looked at from end to end before anything is made of it: nothing outside of its bytes is read.
 * - Bytes are handed out only if they are as many as the record says, and have its checksum.
 * - The layouts are those of index.py and volume_format.py; big-endian.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "crc32.h"

#define FORMAT_VERSION 1
#define FLAG_VERSIONED 0x10
#define FLAG_INLINE 0x20
#define PLACE_BYTES 20
#define HASH_BYTES 32
#define RECORD_FIELDS 17

static const char *const FIELD_NAMES[] = {
    "size", "sequence", "content_hash", "etag", "created_ms", "piece_bytes", "pieces", "content_type", "metadata",
    "version_id", "retention_mode", "retain_until_ms", "legal_hold", "versioned", "delete_marker", "inline", "oldest",
    "record", "content", /* the last two: of the object that has a record */
};
#define NAMES (sizeof FIELD_NAMES / sizeof *FIELD_NAMES)

typedef struct {
    PyObject *names[NAMES];
    PyObject *nothing; /* the empty tuple */
} State;

typedef struct {
    const uint8_t *at;
    size_t left;
    int cut_off;
} Cursor;

typedef struct {
    const char *at;
    size_t length;
} Text;

typedef struct {
    uint64_t size, sequence, oldest, created, retain_until;
    uint32_t piece_bytes, crc;
    unsigned versioned, metadata_count;
    const uint8_t *hash, *content;
    Text version_id, etag, content_type;
    Cursor metadata;
} Row;

static const uint8_t *take(Cursor *cursor, size_t length) {
    const uint8_t *taken = cursor->at;
    if (length > cursor->left) {
        cursor->cut_off = 1;
        cursor->left = 0;
        return NULL;
    }
    cursor->at += length;
    cursor->left -= length;
    return taken;
}

static uint64_t take_number(Cursor *cursor, size_t length) {
    const uint8_t *bytes = take(cursor, length);
    uint64_t number = 0;
    for (size_t i = 0; bytes && i < length; i++)
        number = number << 8 | bytes[i];
    return number;
}

static Text take_text(Cursor *cursor, size_t length_bytes) {
    size_t length = (size_t)take_number(cursor, length_bytes);
    return (Text){(const char *)take(cursor, length), length};
}

/* Whether the bytes are such a row. */
static int read_row(const uint8_t *bytes, size_t length, Row *row) {
    Cursor whole = {bytes, length, 0};
    take(&whole, PLACE_BYTES);
    size_t record_bytes = (size_t)take_number(&whole, 4);
    Cursor record = {whole.at, record_bytes, 0};
    take(&whole, record_bytes);
    if (whole.cut_off)
        return 0;
    uint64_t version = take_number(&record, 1), flags = take_number(&record, 1), reserved = take_number(&record, 2);
    row->size = take_number(&record, 8);
    row->sequence = take_number(&record, 8);
    row->oldest = take_number(&record, 8);
    row->created = take_number(&record, 8);
    row->retain_until = take_number(&record, 8);
    row->piece_bytes = (uint32_t)take_number(&record, 4);
    row->hash = take(&record, HASH_BYTES);
    row->version_id = take_text(&record, 2);
    row->etag = take_text(&record, 2);
    row->content_type = take_text(&record, 2);
    row->metadata_count = (unsigned)take_number(&record, 2);
    row->metadata = record;
    for (unsigned i = 0; i < row->metadata_count && !record.cut_off; i++) {
        take_text(&record, 2);
        take_text(&record, 4);
    }
    uint64_t pieces = take_number(&record, 4);
    row->crc = (uint32_t)take_number(&record, 4);
    row->versioned = (flags & FLAG_VERSIONED) != 0;
    row->content = whole.at;
    return !record.cut_off && !record.left && version == FORMAT_VERSION && !reserved && flags & FLAG_INLINE &&
           !(flags & ~(uint64_t)(FLAG_INLINE | FLAG_VERSIONED)) && pieces == 1 && row->size == whole.left &&
           row->size && row->size <= row->piece_bytes && crc32_of(row->content, row->size, 0) == row->crc;
}

/* --- what is made of it -------------------------------------------------------------------------- */

static PyObject *text_of(Text text) {
    return PyUnicode_DecodeUTF8(text.at, (Py_ssize_t)text.length, NULL);
}

static PyObject *metadata_of(const Row *row) {
    Cursor cursor = row->metadata;
    PyObject *metadata = PyDict_New();
    for (unsigned i = 0; metadata && i < row->metadata_count; i++) {
        Text name = take_text(&cursor, 2), value = take_text(&cursor, 4);
        PyObject *key = text_of(name), *content = key ? text_of(value) : NULL;
        if (!content || PyDict_SetItem(metadata, key, content) < 0)
            Py_CLEAR(metadata);
        Py_XDECREF(key);
        Py_XDECREF(content);
    }
    return metadata;
}

static PyObject *pieces_of(const Row *row) {
    PyObject *piece = PyLong_FromUnsignedLong(row->crc), *pieces = piece ? PyTuple_Pack(1, piece) : NULL;
    Py_XDECREF(piece);
    return pieces;
}

/* Takes what it sets. */
static int set_field(PyObject *object, PyObject *name, PyObject *value) {
    int failed = value ? PyObject_SetAttr(object, name, value) : -1;
    Py_XDECREF(value);
    return failed;
}

static PyObject *new_of(PyTypeObject *type, const State *state) {
    return type->tp_new(type, state->nothing, NULL);
}

static PyObject *record_of(const Row *row, PyTypeObject *type, const State *state) {
    PyObject *record = new_of(type, state), *const *name = state->names;
    if (!record)
        return NULL;
    if (set_field(record, *name++, PyLong_FromUnsignedLongLong(row->size)) < 0 ||
        set_field(record, *name++, PyLong_FromUnsignedLongLong(row->sequence)) < 0 ||
        set_field(record, *name++, PyBytes_FromStringAndSize((const char *)row->hash, HASH_BYTES)) < 0 ||
        set_field(record, *name++, text_of(row->etag)) < 0 ||
        set_field(record, *name++, PyLong_FromUnsignedLongLong(row->created)) < 0 ||
        set_field(record, *name++, PyLong_FromUnsignedLong(row->piece_bytes)) < 0 ||
        set_field(record, *name++, pieces_of(row)) < 0 ||
        set_field(record, *name++, text_of(row->content_type)) < 0 ||
        set_field(record, *name++, metadata_of(row)) < 0 ||
        set_field(record, *name++, text_of(row->version_id)) < 0 || PyObject_SetAttr(record, *name++, Py_None) < 0 ||
        set_field(record, *name++, PyLong_FromUnsignedLongLong(row->retain_until)) < 0 ||
        PyObject_SetAttr(record, *name++, Py_False) < 0 ||
        PyObject_SetAttr(record, *name++, row->versioned ? Py_True : Py_False) < 0 ||
        PyObject_SetAttr(record, *name++, Py_False) < 0 || PyObject_SetAttr(record, *name++, Py_True) < 0 ||
        set_field(record, *name++, PyLong_FromUnsignedLongLong(row->oldest)) < 0)
        Py_CLEAR(record);
    return record;
}

static PyObject *stored_of(const Row *row, PyTypeObject *record_type, PyTypeObject *stored_type, const State *state) {
    PyObject *record = record_of(row, record_type, state);
    if (!record)
        return NULL;
    PyObject *stored = new_of(stored_type, state), *const *name = state->names + RECORD_FIELDS;
    if (!stored) {
        Py_DECREF(record);
        return NULL;
    }
    int failed = set_field(stored, *name++, record);
    if (failed < 0 ||
        set_field(stored, *name, PyBytes_FromStringAndSize((const char *)row->content, (Py_ssize_t)row->size)) < 0)
        Py_CLEAR(stored);
    return stored;
}

/* A new reference; NULL with an error that is none of the row. */
static PyObject *answer_to(
    PyObject *content, PyTypeObject *record_type, PyTypeObject *stored_type, const State *state
) {
    Row row;
    if (PyBytes_Check(content) &&
        read_row((const uint8_t *)PyBytes_AS_STRING(content), (size_t)PyBytes_GET_SIZE(content), &row)) {
        PyObject *stored = stored_of(&row, record_type, stored_type, state);
        if (stored || !PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
            return stored;
        PyErr_Clear();
    }
    Py_INCREF(Py_None);
    return Py_None;
}

static PyObject *small_objects(PyObject *module, PyObject *arguments) {
    const State *state = PyModule_GetState(module);
    PyObject *given;
    PyTypeObject *record_type, *stored_type;
    if (!PyArg_ParseTuple(
            arguments, "OO!O!:small_objects", &given, &PyType_Type, &record_type, &PyType_Type, &stored_type
        ))
        return NULL;
    /* A copy of the list: the caller may change its own. */
    PyObject *held = PySequence_Tuple(given);
    Py_ssize_t count = held ? PyTuple_GET_SIZE(held) : 0;
    PyObject *answers = held ? PyList_New(count) : NULL;
    for (Py_ssize_t i = 0; answers && i < count; i++) {
        PyObject *answer = answer_to(PyTuple_GET_ITEM(held, i), record_type, stored_type, state);
        if (answer)
            PyList_SET_ITEM(answers, i, answer);
        else
            Py_CLEAR(answers);
    }
    Py_XDECREF(held);
    return answers;
}

static PyMethodDef methods[] = {
    {"small_objects", small_objects, METH_VARARGS, "See lookups."},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module) {
    State *state = PyModule_GetState(module);
    crc32_prepare();
    state->nothing = PyTuple_New(0);
    if (!state->nothing)
        return -1;
    for (size_t i = 0; i < NAMES; i++) {
        state->names[i] = PyUnicode_InternFromString(FIELD_NAMES[i]);
        if (!state->names[i])
            return -1;
    }
    return 0;
}

static void release(void *module) {
    State *state = PyModule_GetState((PyObject *)module);
    for (size_t i = 0; state && i < NAMES; i++)
        Py_CLEAR(state->names[i]);
    if (state)
        Py_CLEAR(state->nothing);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)prepare}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "row_reading", NULL, sizeof(State), methods, slots, NULL, NULL, release,
};

PyMODINIT_FUNC PyInit_row_reading(void) { return PyModuleDef_Init(&definition); }
