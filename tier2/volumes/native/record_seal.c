/* The records and rows of new objects by one call (write_batch.py): what most write batches consist of.
 *
 * seal(objects, sequence, volume, offset, seed, timestamp, piece_bytes) does what its twin `seal_in_python` of
 * write_batch.py does: all checksums, lengths and places of a batch are written without making an object for each of them.
 *
 * Invariants:
 *
 * - Every length is added up before a byte is written, from objects that cannot change (bytes, str) and are held; what is
 *   written then is what was measured.
 * - What does not fit its field is refused (ValueError), before anything is made.
 * - The layouts are those of volume_format.py and index.py; big-endian.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "crc32.h"

#define ALIGNMENT 8
#define HEADER_BYTES 48
#define CHECKED_FROM 8
#define PUT_RECORD 1
#define RECORD_FIXED_BYTES 80
#define RECORD_NUMBERS_BYTES 16 /* behind those: lengths of three texts, two counts, and one piece */
#define FORMAT_VERSION 1
#define FLAG_INLINE 0x20
#define HASH_BYTES 32
#define OBJECT_ROW_BYTES 24
#define BLOB_ROW_BYTES 32
#define FIELDS 9
#define GROUP_MAX 0xFFFF
#define KEY_BYTES_MAX 4096
#define TEXT_BYTES_MAX 0xFFFF
#define INLINE_BYTES_MAX (16 << 20)

typedef struct {
    const char *key, *content_type, *etag, *hash, *content;
    Py_ssize_t key_bytes, type_bytes, etag_bytes, content_bytes; /* content: NULL unless it is inline */
    uint32_t crc;
    uint64_t size, created;
} Object;

static inline uint8_t *put_number(uint8_t *at, uint64_t number, int bytes) {
    for (int i = bytes - 1; i >= 0; i--, number >>= 8)
        at[i] = (uint8_t)number;
    return at + bytes;
}

static inline uint8_t *put_bytes(uint8_t *at, const void *bytes, size_t length) {
    memcpy(at, bytes, length);
    return at + length;
}

static inline size_t record_bytes(const Object *object) {
    return RECORD_FIXED_BYTES + RECORD_NUMBERS_BYTES + (size_t)object->etag_bytes + (size_t)object->type_bytes;
}

/* Of a record, before its blob. */
static inline size_t front_bytes(const Object *object) {
    return HEADER_BYTES + (size_t)object->key_bytes + record_bytes(object);
}

static inline size_t padding_of(const Object *object) {
    return (size_t)(-(front_bytes(object) + object->size) % ALIGNMENT);
}

/* --- what was given ------------------------------------------------------------------------------ */

static int take_bytes(PyObject *given, const char **bytes, Py_ssize_t *length, Py_ssize_t least, Py_ssize_t most) {
    char *found;
    if (PyBytes_AsStringAndSize(given, &found, length) < 0)
        return -1;
    *bytes = found;
    if (*length >= least && *length <= most)
        return 0;
    PyErr_Format(PyExc_ValueError, "%zd bytes where %zd to %zd fit", *length, least, most);
    return -1;
}

static int take_text(PyObject *given, const char **bytes, Py_ssize_t *length) {
    *bytes = PyUnicode_AsUTF8AndSize(given, length);
    if (!*bytes)
        return -1;
    if (*length <= TEXT_BYTES_MAX)
        return 0;
    PyErr_Format(PyExc_ValueError, "a text of %zd bytes", *length);
    return -1;
}

static int take_number(PyObject *given, uint64_t most, uint64_t *number) {
    *number = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError))
            PyErr_SetString(PyExc_ValueError, "a number that does not fit");
        return -1;
    }
    if (*number <= most)
        return 0;
    PyErr_SetString(PyExc_ValueError, "a number that does not fit");
    return -1;
}

static int take_object(PyObject *given, Object *object) {
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != FIELDS) {
        PyErr_Format(PyExc_TypeError, "an object is a tuple of %d", FIELDS);
        return -1;
    }
    uint64_t crc;
    Py_ssize_t hash_bytes;
    PyObject *content = PyTuple_GET_ITEM(given, 7);
    if (take_bytes(PyTuple_GET_ITEM(given, 0), &object->key, &object->key_bytes, 0, KEY_BYTES_MAX) < 0 ||
        take_text(PyTuple_GET_ITEM(given, 1), &object->content_type, &object->type_bytes) < 0 ||
        take_text(PyTuple_GET_ITEM(given, 2), &object->etag, &object->etag_bytes) < 0 ||
        take_bytes(PyTuple_GET_ITEM(given, 3), &object->hash, &hash_bytes, HASH_BYTES, HASH_BYTES) < 0 ||
        take_number(PyTuple_GET_ITEM(given, 4), UINT32_MAX, &crc) < 0 ||
        take_number(PyTuple_GET_ITEM(given, 5), (uint64_t)1 << 62, &object->size) < 0 ||
        take_number(PyTuple_GET_ITEM(given, 6), UINT64_MAX, &object->created) < 0)
        return -1;
    object->crc = (uint32_t)crc;
    if (content == Py_None)
        return 0;
    if (take_bytes(content, &object->content, &object->content_bytes, 0, INLINE_BYTES_MAX) < 0)
        return -1;
    if ((uint64_t)object->content_bytes == object->size)
        return 0;
    PyErr_Format(PyExc_ValueError, "%zd inline bytes of an object of another size", object->content_bytes);
    return -1;
}

/* --- what is made -------------------------------------------------------------------------------- */

typedef struct {
    uint64_t sequence, offset, timestamp;
    uint32_t volume, seed, piece_bytes;
} Place;

static uint8_t *write_index_record(uint8_t *at, const Object *object, const Place *place) {
    at = put_number(at, FORMAT_VERSION, 1);
    at = put_number(at, object->content ? FLAG_INLINE : 0, 1);
    at = put_number(at, 0, 2);
    at = put_number(at, object->size, 8);
    at = put_number(at, place->sequence, 8);
    at = put_number(at, place->sequence, 8); /* the oldest one */
    at = put_number(at, object->created, 8);
    at = put_number(at, 0, 8); /* no retention */
    at = put_number(at, place->piece_bytes, 4);
    at = put_bytes(at, object->hash, HASH_BYTES);
    at = put_number(at, 0, 2); /* no version id */
    at = put_number(at, (uint64_t)object->etag_bytes, 2);
    at = put_bytes(at, object->etag, (size_t)object->etag_bytes);
    at = put_number(at, (uint64_t)object->type_bytes, 2);
    at = put_bytes(at, object->content_type, (size_t)object->type_bytes);
    at = put_number(at, 0, 2); /* no metadata */
    at = put_number(at, 1, 4);
    return put_number(at, object->crc, 4);
}

/* Up to where its blob, or the record behind it, begins: padding is not written. */
static uint8_t *write_record(uint8_t *header, const Object *object, const Place *place, Py_ssize_t group_left) {
    uint8_t *body = header + HEADER_BYTES;
    uint8_t *at = put_bytes(body, object->key, (size_t)object->key_bytes);
    at = write_index_record(at, object, place);
    if (object->content)
        at = put_bytes(at, object->content, (size_t)object->content_bytes);
    uint32_t crc = crc32_of(body, (size_t)(at - body), place->seed);
    if (!object->content)
        crc = crc32_behind(crc, object->crc, object->size);
    uint8_t *checked = header + CHECKED_FROM, *field = checked;
    field = put_number(field, crc, 4);
    field = put_number(field, place->timestamp, 8);
    field = put_number(field, (uint64_t)object->key_bytes, 4);
    field = put_number(field, object->size, 8);
    field = put_number(field, 0, 1);
    field = put_number(field, PUT_RECORD, 1);
    field = put_number(field, (uint64_t)group_left, 2);
    field = put_number(field, record_bytes(object), 4);
    field = put_number(field, place->sequence, 8);
    put_bytes(header, "S4rc", 4);
    put_number(header + 4, crc32_of(checked, (size_t)(field - checked), place->seed), 4);
    return at;
}

static int set_row(PyObject *rows, char kind, const char *key, Py_ssize_t key_bytes, PyObject *row) {
    PyObject *row_key = row ? PyBytes_FromStringAndSize(NULL, key_bytes + 1) : NULL;
    int failed = -1;
    if (row_key) {
        char *bytes = PyBytes_AS_STRING(row_key);
        bytes[0] = kind;
        memcpy(bytes + 1, key, (size_t)key_bytes);
        failed = PyDict_SetItem(rows, row_key, row);
    }
    Py_XDECREF(row_key);
    Py_XDECREF(row);
    return failed;
}

/* `written`: the record, as it was just written. */
static int add_rows(PyObject *rows, const Object *object, const Place *place, const uint8_t *written) {
    size_t front = front_bytes(object), record = record_bytes(object), inlined = (size_t)object->content_bytes;
    PyObject *row = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(OBJECT_ROW_BYTES + record + inlined));
    if (row) {
        uint8_t *at = (uint8_t *)PyBytes_AS_STRING(row);
        at = put_number(at, place->volume, 4);
        at = put_number(at, place->offset, 8);
        at = put_number(at, front + inlined, 8);
        at = put_number(at, record, 4);
        put_bytes(at, written + HEADER_BYTES + object->key_bytes, record + inlined);
    }
    if (set_row(rows, 'o', object->key, object->key_bytes, row) < 0)
        return -1;
    if (object->content)
        return 0;
    row = PyBytes_FromStringAndSize(NULL, BLOB_ROW_BYTES);
    if (row) {
        uint8_t *at = (uint8_t *)PyBytes_AS_STRING(row);
        at = put_number(at, place->volume, 4);
        at = put_number(at, place->offset, 8);
        at = put_number(at, place->offset + front, 8);
        at = put_number(at, object->size, 8);
        put_number(at, 1, 4); /* the names of the blob */
    }
    return set_row(rows, 'b', object->hash, HASH_BYTES, row);
}

/* Bytes of the part that begins with `padding` and the record of `first`, and the first object of the next part. */
static size_t part_bytes(const Object *objects, Py_ssize_t count, Py_ssize_t first, size_t padding, Py_ssize_t *next) {
    size_t length = padding;
    Py_ssize_t i = first;
    while (i < count) {
        const Object *object = &objects[i++];
        length += front_bytes(object);
        if (!object->content)
            break;
        length += (size_t)object->content_bytes + padding_of(object);
    }
    *next = i;
    return length;
}

static PyObject *seal_all(const Object *objects, Py_ssize_t count, Place place) {
    PyObject *parts = PyList_New(0), *rows = PyDict_New();
    uint64_t start = place.offset, live = 0;
    size_t padding = 0;
    Py_ssize_t first = 0;
    int blob_follows = 0;
    while (parts && rows && (first < count || blob_follows)) {
        Py_ssize_t next;
        size_t length = part_bytes(objects, count, first, padding, &next);
        PyObject *part = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length);
        if (!part || PyList_Append(parts, part) < 0) {
            Py_XDECREF(part);
            goto failed;
        }
        Py_DECREF(part); /* the list has it */
        uint8_t *at = (uint8_t *)PyBytes_AS_STRING(part);
        memset(at, 0, padding);
        at += padding;
        padding = 0;
        blob_follows = 0;
        for (Py_ssize_t i = first; i < next; i++) {
            const Object *object = &objects[i];
            size_t rest = padding_of(object);
            uint8_t *end = write_record(at, object, &place, count - 1 - i);
            if (add_rows(rows, object, &place, at) < 0)
                goto failed;
            if (object->content) {
                memset(end, 0, rest);
                end += rest;
            } else {
                padding = rest;
                blob_follows = 1;
            }
            at = end;
            live += front_bytes(object) + object->size;
            place.offset += front_bytes(object) + object->size + rest;
            place.sequence++;
        }
        first = next;
    }
    if (parts && rows)
        return Py_BuildValue(
            "NNKK", parts, rows, (unsigned long long)(place.offset - start), (unsigned long long)live
        );
failed:
    Py_XDECREF(parts);
    Py_XDECREF(rows);
    return NULL;
}

static PyObject *seal(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *given;
    unsigned long long sequence, offset, timestamp;
    unsigned int volume, seed, piece_bytes;
    if (!PyArg_ParseTuple(
            arguments, "OKIKIKI:seal", &given, &sequence, &volume, &offset, &seed, &timestamp, &piece_bytes
        ))
        return NULL;
    /* A copy of the list: the caller may change its own. */
    PyObject *held = PySequence_Tuple(given), *sealed = NULL;
    if (!held)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(held);
    Object *objects = NULL;
    if (count < 1 || count > GROUP_MAX) {
        PyErr_Format(PyExc_ValueError, "a group of %zd objects", count);
        goto done;
    }
    objects = PyMem_Calloc((size_t)count, sizeof *objects);
    if (!objects) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (take_object(PyTuple_GET_ITEM(held, i), &objects[i]) < 0)
            goto done;
    sealed = seal_all(objects, count, (Place){sequence, offset, timestamp, volume, seed, piece_bytes});
done:
    PyMem_Free(objects);
    Py_DECREF(held);
    return sealed;
}

static PyMethodDef methods[] = {
    {"seal", seal, METH_VARARGS, "See write_batch.py."},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *Py_UNUSED(module)) {
    crc32_prepare();
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)prepare}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "record_seal", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_record_seal(void) { return PyModuleDef_Init(&definition); }
