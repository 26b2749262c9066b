#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyMethodDef methods[] = {{NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "record_walk", NULL, 0, methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_record_walk(void) { return PyModuleDef_Init(&module); }
