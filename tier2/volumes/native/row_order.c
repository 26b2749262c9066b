/* Rows put in the order of their keys, tens of thousands at once (rebuild.py).
 *
 * order(rows) does what its twin `order_in_python` of rebuild.py does: the list is sorted by the first item of each of its
 * tuples, and what is said is whether two of them are the same. Keys are compared by eight bytes as one number, behind what
 * all of them begin with; the rest of a key is looked at only where these are the same.
 *
 * Invariants:
 *
 * - The list has the same tuples afterwards as before, those of one key in the order in which they came; a list that
 *   is refused (TypeError) is as it was.
 * - Nothing of Python runs between the first look at the list and the last: no other thread changes it meanwhile.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define FRONT_BYTES 8

typedef struct {
    uint64_t front; /* the bytes behind the common ones, the first of them highest */
    const char *rest;
    Py_ssize_t rest_bytes; /* behind the front; negative: the key ends so many bytes before the front does */
    Py_ssize_t place;
    PyObject *row;
} Entry;

static int compare(const void *left, const void *right) {
    const Entry *one = left, *other = right;
    if (one->front != other->front)
        return one->front < other->front ? -1 : 1;
    Py_ssize_t shared = one->rest_bytes < other->rest_bytes ? one->rest_bytes : other->rest_bytes;
    int found = shared > 0 ? memcmp(one->rest, other->rest, (size_t)shared) : 0;
    if (found)
        return found;
    return (one->rest_bytes > other->rest_bytes) - (one->rest_bytes < other->rest_bytes);
}

static int compare_places(const void *left, const void *right) {
    const Entry *one = left, *other = right;
    int found = compare(left, right);
    return found ? found : (one->place > other->place) - (one->place < other->place);
}

/* What all keys begin with, in bytes; negative with an error if one is none. */
static Py_ssize_t common_bytes(PyObject *rows, Py_ssize_t count) {
    const char *first = NULL;
    Py_ssize_t common = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *row = PyList_GET_ITEM(rows, i), *key = NULL;
        if (PyTuple_Check(row) && PyTuple_GET_SIZE(row) > 0)
            key = PyTuple_GET_ITEM(row, 0);
        if (!key || !PyBytes_Check(key)) {
            PyErr_SetString(PyExc_TypeError, "a row is a tuple that begins with its key");
            return -1;
        }
        const char *bytes = PyBytes_AS_STRING(key);
        Py_ssize_t length = PyBytes_GET_SIZE(key), shared = 0;
        if (!first) {
            first = bytes;
            common = length;
        }
        if (length < common)
            common = length;
        while (shared < common && bytes[shared] == first[shared])
            shared++;
        common = shared;
    }
    return common;
}

static Entry entry_of(PyObject *row, Py_ssize_t common, Py_ssize_t place) {
    PyObject *key = PyTuple_GET_ITEM(row, 0);
    const uint8_t *bytes = (const uint8_t *)PyBytes_AS_STRING(key) + common;
    Py_ssize_t length = PyBytes_GET_SIZE(key) - common;
    uint64_t front = 0;
    for (Py_ssize_t i = 0; i < FRONT_BYTES; i++)
        front = front << 8 | (i < length ? bytes[i] : 0);
    return (Entry){front, (const char *)bytes + FRONT_BYTES, length - FRONT_BYTES, place, row};
}

static PyObject *order(PyObject *Py_UNUSED(module), PyObject *rows) {
    if (!PyList_Check(rows)) {
        PyErr_SetString(PyExc_TypeError, "rows are a list");
        return NULL;
    }
    Py_ssize_t count = PyList_GET_SIZE(rows), common = common_bytes(rows, count);
    if (common < 0)
        return NULL;
    Entry *entries = PyMem_Calloc((size_t)count + 1, sizeof *entries);
    if (!entries)
        return PyErr_NoMemory();
    int sorted = 1, repeated = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        entries[i] = entry_of(PyList_GET_ITEM(rows, i), common, i);
        if (i && sorted && compare(&entries[i - 1], &entries[i]) > 0)
            sorted = 0;
    }
    if (!sorted) {
        qsort(entries, (size_t)count, sizeof *entries, compare_places);
        for (Py_ssize_t i = 0; i < count; i++)
            PyList_SET_ITEM(rows, i, entries[i].row); /* the list had it before: no row's reference count changes */
    }
    for (Py_ssize_t i = 1; i < count && !repeated; i++)
        repeated = !compare(&entries[i - 1], &entries[i]);
    PyMem_Free(entries);
    return PyBool_FromLong(repeated);
}

static PyMethodDef methods[] = {
    {"order", order, METH_O, "See rebuild.py."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "row_order", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_row_order(void) { return PyModuleDef_Init(&definition); }
