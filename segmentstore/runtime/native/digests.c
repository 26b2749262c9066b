/* SHA-256, CRC-32 and CRC-64 of many contents by one call: the interpreter is given away once for all of them.
 *
 * A thread that hashes one content after the other from Python asks for the interpreter between two of them, and waits
 * for it each time.
 *
 * Invariants:
 *
 * - Every buffer is held from before it is measured until it was read: its owner cannot resize it meanwhile. No byte
 *   outside of the held buffers is read.
 * - A buffer that is not contiguous is refused (BufferError), as is what is no buffer (TypeError), before anything is read.
 * - SHA-256 is that of the library that Python's own hashlib has loaded, found at run time: nothing is linked, and no other
 *   library is ever loaded. HASHES is false where it was not found. Contents of about the same length are hashed side by
 *   side instead, where the processor can (sha256_lanes.h).
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <string.h>

#include "crc32.h"
#include "crc64.h"
#include "sha256_lanes.h"

#define HASH_BYTES SHA256_BYTES
/* So many contents one by one take longer as all lanes together. */
#define LANES_FILLED_MIN 6
/* Less takes no longer than to give the interpreter away and to get it back. */
#define HASHED_WITH_INTERPRETER_MAX 4096
#define SUMMED_WITH_INTERPRETER_MAX (128 << 10)
#define SUMMED_TO_64_WITH_INTERPRETER_MAX (16 << 10)

static int has_lanes;
static int hashes;
static void *(*new_context)(void);
static void (*free_context)(void *);
static const void *sha256;
static int (*begin_hash)(void *, const void *, void *);
static int (*add_to_hash)(void *, const void *, size_t);
static int (*end_hash)(void *, unsigned char *, unsigned int *);

/* 0: without it nothing hashes. */
static int find_sha256(void) {
    static const char *const names[] = {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.3.dylib", NULL};
    const void *(*named)(void), *(*fetch)(void *, const char *, const char *);
    for (const char *const *name = names; *name; name++) {
        void *library = dlopen(*name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
        if (!library)
            continue;
        /* ISO C knows no way from an object pointer to a function; POSIX means this one. */
        *(void **)&new_context = dlsym(library, "EVP_MD_CTX_new");
        *(void **)&free_context = dlsym(library, "EVP_MD_CTX_free");
        *(void **)&named = dlsym(library, "EVP_sha256");
        *(void **)&fetch = dlsym(library, "EVP_MD_fetch");
        *(void **)&begin_hash = dlsym(library, "EVP_DigestInit_ex");
        *(void **)&add_to_hash = dlsym(library, "EVP_DigestUpdate");
        *(void **)&end_hash = dlsym(library, "EVP_DigestFinal_ex");
        if (new_context && free_context && named && begin_hash && add_to_hash && end_hash) {
            /* From version 3 on one that is fetched once need not be looked for at each use. */
            sha256 = fetch ? fetch(NULL, "SHA256", NULL) : named();
            if (sha256)
                return 1; /* the library stays */
        }
        dlclose(library);
    }
    return 0;
}

/* --- buffers ------------------------------------------------------------------------------------ */

typedef struct {
    Py_ssize_t end; /* of its buffers; they begin where those of the content before it end */
    Py_ssize_t size;
    unsigned char hash[HASH_BYTES];
} Content;

typedef struct {
    Py_buffer *buffers;
    Py_ssize_t buffer_count, buffer_room;
    Content *contents;
    Py_ssize_t count;
    Py_ssize_t size;
} Held;

static void release(Held *held) {
    for (Py_ssize_t i = 0; i < held->buffer_count; i++)
        PyBuffer_Release(&held->buffers[i]);
    PyMem_Free(held->buffers);
    PyMem_Free(held->contents);
}

static int hold_one(Held *held, Content *content, PyObject *buffer) {
    if (held->buffer_count == held->buffer_room) {
        Py_ssize_t room = held->buffer_room * 2 + 16;
        Py_buffer *larger = PyMem_Realloc(held->buffers, (size_t)room * sizeof *larger);
        if (!larger) {
            PyErr_NoMemory();
            return -1;
        }
        held->buffers = larger;
        held->buffer_room = room;
    }
    Py_buffer *view = &held->buffers[held->buffer_count];
    if (PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE) < 0)
        return -1;
    held->buffer_count++;
    if (view->len > PY_SSIZE_T_MAX - held->size) {
        PyErr_SetString(PyExc_OverflowError, "contents are too long");
        return -1;
    }
    content->size += view->len;
    held->size += view->len;
    return 0;
}

static int hold_content(Held *held, Content *content, PyObject *given) {
    PyObject *buffers = PySequence_Fast(given, "a content is a sequence of buffers");
    if (!buffers)
        return -1;
    int failed = 0;
    /* Asked anew each time: an object may run code, and change the list, when it is asked for its bytes. */
    for (Py_ssize_t i = 0; !failed && i < PySequence_Fast_GET_SIZE(buffers); i++) {
        PyObject *buffer = PySequence_Fast_GET_ITEM(buffers, i);
        Py_INCREF(buffer);
        failed = hold_one(held, content, buffer) < 0;
        Py_DECREF(buffer);
    }
    Py_DECREF(buffers);
    content->end = held->buffer_count;
    return failed ? -1 : 0;
}

/* Whatever it gives, `release` comes behind it. */
static int hold_all(Held *held, PyObject *given) {
    memset(held, 0, sizeof *held);
    PyObject *contents = PySequence_Tuple(given); /* a tuple: no other thread can change it */
    if (!contents)
        return -1;
    Py_ssize_t count = PyTuple_GET_SIZE(contents);
    int failed = 0;
    held->contents = PyMem_Calloc((size_t)count + 1, sizeof *held->contents);
    if (!held->contents) {
        PyErr_NoMemory();
        failed = 1;
    }
    for (; !failed && held->count < count; held->count++)
        failed = hold_content(held, &held->contents[held->count], PyTuple_GET_ITEM(contents, held->count)) < 0;
    Py_DECREF(contents);
    return failed ? -1 : 0;
}

/* --- without the interpreter -------------------------------------------------------------------- */

/* The checksum of each piece; where the next content's begin. */
static uint32_t *sum_pieces(const Py_buffer *buffer, const Py_buffer *end, size_t piece_bytes, uint32_t *sums) {
    size_t room = piece_bytes;
    uint32_t crc = 0;
    for (; buffer < end; buffer++) {
        const uint8_t *data = buffer->buf;
        size_t left = (size_t)buffer->len;
        while (left >= room) {
            *sums++ = crc32_of(data, room, crc);
            data += room;
            left -= room;
            crc = 0;
            room = piece_bytes;
        }
        if (left) {
            crc = crc32_of(data, left, crc);
            room -= left;
        }
    }
    if (room < piece_bytes)
        *sums++ = crc;
    return sums;
}

static int hash_buffers(void *context, const Py_buffer *buffer, const Py_buffer *end, unsigned char *hash) {
    if (!begin_hash(context, sha256, NULL))
        return -1;
    for (; buffer < end; buffer++)
        if (!add_to_hash(context, buffer->buf, (size_t)buffer->len))
            return -1;
    return end_hash(context, hash, NULL) ? 0 : -1;
}

static const Py_buffer *buffers_of(const Held *held, Py_ssize_t number) {
    return held->buffers + (number ? held->contents[number - 1].end : 0);
}

#if SHA256_BY_LANES
/* How many contents from `first` on are hashed side by side faster than one by one; 0 if none. */
static int lanes_from(const Held *held, Py_ssize_t first) {
    Py_ssize_t sum = 0, longest = 1;
    int count = 0;
    for (Py_ssize_t i = first; i < held->count && count < SHA256_LANES; i++, count++) {
        Py_ssize_t size = held->contents[i].size;
        sum += size;
        longest = size > longest ? size : longest;
    }
    return sum / longest >= LANES_FILLED_MIN ? count : 0;
}

static void hash_side_by_side(Held *held, Py_ssize_t first, int count) {
    Sha256Lane lanes[SHA256_LANES];
    unsigned char *hashes[SHA256_LANES];
    for (int i = 0; i < count; i++) {
        Py_ssize_t number = first + i;
        sha256_begin(&lanes[i], buffers_of(held, number), buffers_of(held, number + 1));
        hashes[i] = held->contents[number].hash;
    }
    sha256_hash_lanes(lanes, count, hashes);
}
#endif

static int hash_held(Held *held) {
    void *context = new_context();
    int failed = !context;
    for (Py_ssize_t i = 0; !failed && i < held->count;) {
#if SHA256_BY_LANES
        int side_by_side = has_lanes ? lanes_from(held, i) : 0;
        if (side_by_side) {
            hash_side_by_side(held, i, side_by_side);
            i += side_by_side;
            continue;
        }
#endif
        failed = hash_buffers(context, buffers_of(held, i), buffers_of(held, i + 1), held->contents[i].hash) < 0;
        i++;
    }
    if (context)
        free_context(context);
    return failed ? -1 : 0;
}

static int digest_held(Held *held, size_t piece_bytes, int hashed, uint32_t *sums) {
    for (Py_ssize_t i = 0; i < held->count; i++)
        sums = sum_pieces(buffers_of(held, i), buffers_of(held, i + 1), piece_bytes, sums);
    return hashed ? hash_held(held) : 0;
}

typedef uint64_t Sum(const uint8_t *data, size_t length, uint64_t value);

static uint64_t sum_to_32(const uint8_t *data, size_t length, uint64_t value) {
    return crc32_of(data, length, (uint32_t)value);
}

static void sum_held(const Held *held, Sum *sum, uint64_t value, uint64_t *sums) {
    for (Py_ssize_t i = 0; i < held->count; i++) {
        uint64_t crc = value;
        for (const Py_buffer *buffer = buffers_of(held, i); buffer < buffers_of(held, i + 1); buffer++)
            crc = sum(buffer->buf, (size_t)buffer->len, crc);
        sums[i] = crc;
    }
}

/* --- from Python -------------------------------------------------------------------------------- */

static PyObject *pieces_of(const uint32_t *sums, Py_ssize_t count) {
    PyObject *pieces = PyTuple_New(count);
    for (Py_ssize_t i = 0; pieces && i < count; i++) {
        PyObject *sum = PyLong_FromUnsignedLong(sums[i]);
        if (!sum)
            Py_CLEAR(pieces);
        else
            PyTuple_SET_ITEM(pieces, i, sum);
    }
    return pieces;
}

static PyObject *outcomes_of(const Held *held, size_t piece_bytes, int hashed, const uint32_t *sums) {
    PyObject *outcomes = PyList_New(held->count);
    for (Py_ssize_t i = 0; outcomes && i < held->count; i++) {
        const Content *content = &held->contents[i];
        Py_ssize_t count = content->size / (Py_ssize_t)piece_bytes + (content->size % (Py_ssize_t)piece_bytes != 0);
        PyObject *pieces = pieces_of(sums, count);
        PyObject *outcome = NULL;
        if (pieces)
            outcome = Py_BuildValue("(ny#N)", content->size, content->hash, (Py_ssize_t)(hashed ? HASH_BYTES : 0), pieces);
        if (!outcome)
            Py_CLEAR(outcomes);
        else
            PyList_SET_ITEM(outcomes, i, outcome);
        sums += count;
    }
    return outcomes;
}

static PyObject *digest_all(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *given, *outcomes = NULL;
    Py_ssize_t piece_bytes;
    int hashed;
    if (!PyArg_ParseTuple(arguments, "Onp:digest_all", &given, &piece_bytes, &hashed))
        return NULL;
    if (piece_bytes <= 0)
        return PyErr_Format(PyExc_ValueError, "pieces of %zd bytes", piece_bytes);
    if (hashed && !hashes) {
        PyErr_SetString(PyExc_RuntimeError, "nothing here hashes");
        return NULL;
    }
    Held held;
    uint32_t *sums = NULL;
    if (hold_all(&held, given) < 0)
        goto done;
    size_t count = 1;
    for (Py_ssize_t i = 0; i < held.count; i++)
        count += (size_t)(held.contents[i].size / piece_bytes) + 1;
    sums = PyMem_Malloc(count * sizeof *sums);
    if (!sums) {
        PyErr_NoMemory();
        goto done;
    }
    int failed;
    if (held.size <= (hashed ? HASHED_WITH_INTERPRETER_MAX : SUMMED_WITH_INTERPRETER_MAX)) {
        failed = digest_held(&held, (size_t)piece_bytes, hashed, sums);
    } else {
        Py_BEGIN_ALLOW_THREADS
        failed = digest_held(&held, (size_t)piece_bytes, hashed, sums);
        Py_END_ALLOW_THREADS
    }
    if (failed)
        PyErr_SetString(PyExc_RuntimeError, "SHA-256 failed");
    else
        outcomes = outcomes_of(&held, (size_t)piece_bytes, hashed, sums);
done:
    PyMem_Free(sums);
    release(&held);
    return outcomes;
}

static PyObject *sums_of(PyObject *given, Sum *sum, uint64_t value, Py_ssize_t with_interpreter_max) {
    PyObject *outcomes = NULL;
    Held held;
    uint64_t *sums = NULL;
    if (hold_all(&held, given) < 0)
        goto done;
    sums = PyMem_Malloc(((size_t)held.count + 1) * sizeof *sums);
    if (!sums) {
        PyErr_NoMemory();
        goto done;
    }
    if (held.size <= with_interpreter_max) {
        sum_held(&held, sum, value, sums);
    } else {
        Py_BEGIN_ALLOW_THREADS
        sum_held(&held, sum, value, sums);
        Py_END_ALLOW_THREADS
    }
    outcomes = PyList_New(held.count);
    for (Py_ssize_t i = 0; outcomes && i < held.count; i++) {
        PyObject *one = PyLong_FromUnsignedLongLong(sums[i]);
        if (!one)
            Py_CLEAR(outcomes);
        else
            PyList_SET_ITEM(outcomes, i, one);
    }
done:
    PyMem_Free(sums);
    release(&held);
    return outcomes;
}

static PyObject *crc32_all(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *given;
    unsigned int value;
    if (!PyArg_ParseTuple(arguments, "OI:crc32_all", &given, &value))
        return NULL;
    return sums_of(given, sum_to_32, value, SUMMED_WITH_INTERPRETER_MAX);
}

static PyObject *crc64_all(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *given;
    unsigned long long value;
    if (!PyArg_ParseTuple(arguments, "OK:crc64_all", &given, &value))
        return NULL;
    return sums_of(given, crc64_of, value, SUMMED_TO_64_WITH_INTERPRETER_MAX);
}

static int prepare(PyObject *module) {
    crc32_prepare();
    crc64_prepare();
    /* The library is there when Python's own module is. */
    PyObject *hashlib = PyImport_ImportModule("_hashlib");
    if (!hashlib)
        PyErr_Clear();
    has_lanes = sha256_has_lanes();
    hashes = hashlib && (sha256 || find_sha256());
    Py_XDECREF(hashlib);
    return PyModule_AddIntConstant(module, "HASHES", hashes);
}

static PyMethodDef methods[] = {
    {"digest_all", digest_all, METH_VARARGS, "Size, SHA-256 (or nothing) and the CRC-32 of each piece, of each content."},
    {"crc32_all", crc32_all, METH_VARARGS, "The CRC-32 of each content, behind `value`."},
    {"crc64_all", crc64_all, METH_VARARGS, "The CRC-64/NVME of each content, behind `value`."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)prepare}, {0, NULL}};

static struct PyModuleDef module_of_digests = {
    PyModuleDef_HEAD_INIT, "digests", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_digests(void) { return PyModuleDef_Init(&module_of_digests); }
