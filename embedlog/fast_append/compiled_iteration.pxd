# The C types and C functions of compiled_iteration.py.

from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF


cdef extern from "Python.h":
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    ctypedef PySendResult (*sendfunc)(object, object, PyObject**) except PYGEN_ERROR
    PySendResult PyIter_Send(object awaited, object value, PyObject** result) except PYGEN_ERROR


cdef extern from "awaiting.h":
    void set_send(PyTypeObject* kind, sendfunc send)


cdef class Iteration:
    cdef object _consumer
    cdef object _core
    cdef object _interrupt
    cdef object _waiting
    cdef bint _asked

    cdef object _at_hand(self)


cdef PySendResult _send(object iteration, object value, PyObject** result) except PYGEN_ERROR
