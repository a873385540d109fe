// Shared by all files of binding/: nanobind, the C headers, the GIL, exceptions, exported buffers.
//
// Not here: the objects that Python sees (objects.h).
#ifndef AG_BINDING_COMMON_H
#define AG_BINDING_COMMON_H

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

// The C headers use C11 atomics; in C++ the layout of std::atomic is the same for all types used here.
#define _Atomic(T) std::atomic<T>
#include <atomic>
using std::atomic_bool;
using std::atomic_int;
using std::atomic_uint;
using std::atomic_uint_fast64_t;
#define AG_RUNTIME_CPP 1
extern "C" {
#include "lower/mul_mat/scheme.h"
#include "runtime/packing.h"
#include "runtime/rest.h"
#include "runtime/runtime.h"
#include "runtime/cores.h"
#include "runtime/topology.h"

#include "formats/quant.h"
}

namespace binding
{

namespace nb = nanobind;
using namespace nb::literals;

// Releases the GIL for a scope. A thread that wants it back after the exit began is stopped for good: Python would end
// the thread by unwinding through C++ frames, which would end the process.
struct Unlocked {
    PyThreadState *state = PyEval_SaveThread();
    Unlocked() = default;
    Unlocked(const Unlocked &) = delete;
    ~Unlocked();
};

bool finished(); // the interpreter is ending: only a thread that already holds the GIL may touch Python objects
void shutdown(); // at exit, by the thread that ends the interpreter
void interpreter_forked(); // in the child of a fork

// Called once: the package passes its classes.
struct Exceptions {
    nb::handle invalid_state, alloc_failed, invalid_argument, unsupported;
};
extern Exceptions exceptions;
[[noreturn]] void raise(nb::handle type, const std::string &message);

// Text of native code for Python. Names and messages have room for so many bytes, so the last character may be cut.
nb::str text_of(const char *text);

struct BufferView {
    Py_buffer b;
    BufferView(nb::handle object, int flags)
    {
        if (PyObject_GetBuffer(object.ptr(), &b, flags) != 0) throw nb::python_error();
    }
    BufferView(const BufferView &) = delete;
    ~BufferView()
    {
        PyBuffer_Release(&b);
    }
};

// Each adds its classes and functions to the module.
void bind_interpreter(nb::module_ &m);
void bind_tables(nb::module_ &m);
void bind_roofline(nb::module_ &m);
void bind_types(nb::module_ &m);
void bind_objects(nb::module_ &m);
void bind_mapped_file(nb::module_ &m);
void bind_plan(nb::module_ &m);
void bind_operations(nb::module_ &m);
void bind_stream(nb::module_ &m);
void bind_waits(nb::module_ &m);
void bind_script(nb::module_ &m);
void bind_prepared(nb::module_ &m);
void bind_tensors(nb::module_ &m);
void bind_lineup(nb::module_ &m);
void bind_cuda(nb::module_ &m);
void bind_ggml(nb::module_ &m);

} // namespace binding

#endif
