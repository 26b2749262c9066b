/* Records of batches to columns of numbers: the loops of record_columns.py.
 *
 * batches_to_columns and records_to_columns do what their twins of the same names do there. The columns lie one behind the
 * other in one buffer of 64-bit numbers, each with room for as many rows as the others.
 *
 * Invariants:
 *
 * - Nothing outside of the given buffers is read or written, whatever their bytes say.
 * - What is unusual (a batch that contradicts itself, a control batch) is left to Python, which says what is wrong with it;
 *   so is decompression. No row is then told of that batch.
 * - The interpreter is given away while records are walked; the buffers are held meanwhile, so nothing can resize them.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "crc32c.h"
#include "record_batches.h"
#include "record_fields.h"

#define COLUMNS 8

typedef enum { DONE, FULL, OTHER, COMPRESSED } Stop;

typedef struct {
    uint8_t *numbers; /* in any alignment */
    Py_ssize_t room, rows;
    int64_t from_offset;
} Columns;

static inline void write_row(const Columns *columns, Py_ssize_t row, const int64_t values[COLUMNS]) {
    for (int i = 0; i < COLUMNS; i++)
        memcpy(columns->numbers + sizeof values[0] * (size_t)(i * columns->room + row), &values[i], sizeof values[0]);
}

/* All records of a batch, or none. Positions count from `first`, which `shift` is added to. */
static Stop walk_records(Records records, const uint8_t *first, int64_t shift, Columns *columns) {
    Py_ssize_t row = columns->rows;
    while (records.count) {
        FoundRecord found;
        if (!next_record(&records, &found))
            return OTHER;
        if (found.offset < columns->from_offset)
            continue;
        if (row == columns->room)
            return FULL;
        const int64_t values[COLUMNS] = {
            found.offset,
            found.time,
            found.tail.key - first + shift,
            found.tail.key_length,
            found.tail.value - first + shift,
            found.tail.value_length,
            found.tail.headers - first + shift,
            found.end - found.tail.headers,
        };
        write_row(columns, row++, values);
    }
    if (records.at != records.end)
        return OTHER;
    columns->rows = row;
    return DONE;
}

static Stop walk_batches(
    const uint8_t *content, Py_ssize_t length, Py_ssize_t *position, Columns *columns, Records *met
) {
    while (*position < length) {
        Records records;
        Py_ssize_t size = sound_batch(content + *position, length - *position, &records);
        if (!size)
            return OTHER;
        if (records.codec) {
            *met = records;
            return COMPRESSED;
        }
        Stop stop = walk_records(records, content, 0, columns);
        if (stop != DONE)
            return stop;
        *position += size;
    }
    return DONE;
}

static int columns_fit(Columns *columns, const Py_buffer *numbers) {
    columns->numbers = numbers->buf;
    columns->room = numbers->len / (Py_ssize_t)(COLUMNS * sizeof(int64_t));
    if (columns->rows >= 0 && columns->rows <= columns->room)
        return 1;
    PyErr_SetString(PyExc_ValueError, "a row lies outside of its columns");
    return 0;
}

static PyObject *batches_to_columns(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer content, numbers;
    Py_ssize_t position;
    long long from_offset;
    Columns columns;
    if (!PyArg_ParseTuple(
            arguments, "y*nLw*n:batches_to_columns", &content, &position, &from_offset, &numbers, &columns.rows
        ))
        return NULL;
    PyObject *answer = NULL;
    columns.from_offset = from_offset;
    if (position < 0 || position > content.len) {
        PyErr_SetString(PyExc_ValueError, "a position lies outside of its buffer");
    } else if (columns_fit(&columns, &numbers)) {
        Stop stop;
        Records met = {.at = NULL};
        Py_BEGIN_ALLOW_THREADS
        stop = walk_batches(content.buf, content.len, &position, &columns, &met);
        Py_END_ALLOW_THREADS
        if (stop == COMPRESSED) {
            PyObject *append_time =
                met.has_append_time ? PyLong_FromLongLong((long long)met.append_time) : Py_NewRef(Py_None);
            answer = append_time ? Py_BuildValue(
                "inn(niLLLLN)", (int)stop, position, columns.rows, met.end - (const uint8_t *)content.buf, met.codec,
                (long long)met.count, (long long)met.base_offset, (long long)met.base_time,
                (long long)met.last_offset_delta, append_time
            ) : NULL;
        } else {
            answer = Py_BuildValue("innO", (int)stop, position, columns.rows, Py_None);
        }
    }
    PyBuffer_Release(&content);
    PyBuffer_Release(&numbers);
    return answer;
}

static PyObject *records_to_columns(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer content, numbers;
    long long count, base_offset, base_time, last_offset_delta, shift, from_offset;
    PyObject *append_time;
    Columns columns;
    if (!PyArg_ParseTuple(
            arguments, "y*LLLLOLLw*n:records_to_columns", &content, &count, &base_offset, &base_time, &last_offset_delta,
            &append_time, &shift, &from_offset, &numbers, &columns.rows
        ))
        return NULL;
    PyObject *answer = NULL;
    const uint8_t *first = content.buf;
    Records records = {
        .at = first, .end = first + content.len, .count = count, .last_delta = -1, .base_offset = base_offset,
        .base_time = base_time, .last_offset_delta = last_offset_delta, .has_append_time = append_time != Py_None,
    };
    if (records.has_append_time)
        records.append_time = PyLong_AsLongLong(append_time);
    columns.from_offset = from_offset;
    int is_placed = base_offset >= 0 && last_offset_delta >= 0 && base_offset <= INT64_MAX - last_offset_delta;
    if (!PyErr_Occurred() && columns_fit(&columns, &numbers)) {
        Stop stop = OTHER;
        if (count >= 0 && is_placed && shift >= 0 && shift <= INT64_MAX - content.len) {
            Py_BEGIN_ALLOW_THREADS
            stop = walk_records(records, first, shift, &columns);
            Py_END_ALLOW_THREADS
        }
        answer = Py_BuildValue("in", (int)stop, columns.rows);
    }
    PyBuffer_Release(&content);
    PyBuffer_Release(&numbers);
    return answer;
}

/* True for a compressed batch: its records are not looked at. The checksum is not compared. */
static PyObject *is_readable(PyObject *module, PyObject *given) {
    (void)module;
    Py_buffer batch;
    if (PyObject_GetBuffer(given, &batch, PyBUF_SIMPLE) < 0)
        return NULL;
    Records records = {.at = NULL};
    FoundRecord found;
    int readable;
    Py_BEGIN_ALLOW_THREADS
    readable = batch.len && batch_as_told(batch.buf, batch.len, &records) == batch.len;
    if (readable && !records.codec) {
        while (records.count && next_record(&records, &found))
            ;
        readable = !records.count && records.at == records.end;
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&batch);
    return PyBool_FromLong(readable);
}

/* Whether no record has a null key; None for records that contradict themselves. All are looked at. */
static PyObject *are_keyed(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer content;
    long long count, last_offset_delta;
    if (!PyArg_ParseTuple(arguments, "y*LL:are_keyed", &content, &count, &last_offset_delta))
        return NULL;
    Records records = {
        .at = content.buf, .end = (const uint8_t *)content.buf + content.len, .count = count, .last_delta = -1,
        .last_offset_delta = last_offset_delta,
    };
    int keyed = 1, readable = 0;
    if (count >= 0 && last_offset_delta >= 0) {
        FoundRecord found;
        Py_BEGIN_ALLOW_THREADS
        while (records.count && next_record(&records, &found))
            keyed &= found.tail.key_length >= 0;
        readable = !records.count && records.at == records.end;
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&content);
    if (!readable)
        Py_RETURN_NONE;
    return PyBool_FromLong(keyed);
}

static PyMethodDef methods[] = {
    {"batches_to_columns", batches_to_columns, METH_VARARGS, "See record_columns.py."},
    {"records_to_columns", records_to_columns, METH_VARARGS, "See record_columns.py."},
    {"is_readable", is_readable, METH_O, "See record_columns.py."},
    {"are_keyed", are_keyed, METH_VARARGS, "See record_columns.py."},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module) {
    (void)module;
    crc32c_prepare();
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)prepare}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "record_columns", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_record_columns(void) { return PyModuleDef_Init(&definition); }
