/* An instance of a Python class that inherits from a C type, without a call of its __init__. */

#ifndef EMBEDLOG_INSTANCES_H
#define EMBEDLOG_INSTANCES_H

#include <Python.h>

static inline PyObject *new_instance(PyTypeObject *kind, PyObject *arguments)
{
    return kind->tp_new(kind, arguments, NULL);
}

#endif
