/* The slots by which an await asks for a result, which Cython leaves to Python methods.

   An awaitable that is done says so by its return value where the interpreter calls am_send (3.11). Where it calls
   tp_iternext (3.12 and newer), by a StopIteration, whose value the interpreter takes at once. Making one each time
   would be half of what a step costs, so one is kept. It is used again if nothing else refers to it, and if it has never
   been caught by Python code, which leaves a traceback in it. */

#ifndef EMBEDLOG_AWAITING_H
#define EMBEDLOG_AWAITING_H

#include <Python.h>

/* Raise StopIteration with this value, whose reference it takes. A record is a tuple, which is why PyErr_SetObject
   would not do. */
static void raise_stop(PyObject *value)
{
#if PY_VERSION_HEX >= 0x030C0000
    static PyObject *kept = NULL;
    if (kept == NULL || Py_REFCNT(kept) > 1 || ((PyBaseExceptionObject *)kept)->traceback != NULL ||
        ((PyBaseExceptionObject *)kept)->context != NULL) {
        Py_XSETREF(kept, PyObject_CallNoArgs(PyExc_StopIteration));
        if (kept == NULL) {
            Py_DECREF(value);
            return;
        }
    }
    Py_XSETREF(((PyStopIterationObject *)kept)->value, value);
    PyErr_SetRaisedException(Py_NewRef(kept));
#else
    PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, value);
    Py_DECREF(value);
    if (stop != NULL) {
        PyErr_SetObject(PyExc_StopIteration, stop);
        Py_DECREF(stop);
    }
#endif
}

static PyObject *next_by_send(PyObject *self)
{
    PyObject *result = NULL;
    switch (Py_TYPE(self)->tp_as_async->am_send(self, Py_None, &result)) {
    case PYGEN_NEXT:
        return result;
    case PYGEN_RETURN:
        raise_stop(result);
        return NULL;
    default:
        return NULL;
    }
}

static void set_send(PyTypeObject *type, sendfunc send)
{
    type->tp_as_async->am_send = send;
    type->tp_iternext = next_by_send;
}

#endif
