/* Instances of named tuples (Record, RecordMetadata, Appended), filled in place.

   tuple.__new__(Record, (...)) makes a plain tuple, copies it, and frees it. Making the one object reads records in
   two thirds of the time, and appends one in nine tenths (docs/decisions/0028-what-the-fast-paths-pay.md).

   The object comes zeroed from its type, and CPython's own tuples set one field more since 3.14: the hash, which is -1
   until it is first asked for. Until all items are set nothing else may see it. */

#ifndef EMBEDLOG_NAMED_TUPLE_H
#define EMBEDLOG_NAMED_TUPLE_H

#include <Python.h>

/* All of its `size` items are to be set. */
static inline PyObject *named_tuple(PyTypeObject *type, Py_ssize_t size)
{
    PyObject *made = type->tp_alloc(type, size);
#if PY_VERSION_HEX >= 0x030E0000
    if (made != NULL)
        ((PyTupleObject *)made)->ob_hash = -1;
#endif
    return made;
}

static inline void set_item(PyObject *made, Py_ssize_t i, PyObject *item)
{
    Py_INCREF(item);
    PyTuple_SET_ITEM(made, i, item);
}

#endif
