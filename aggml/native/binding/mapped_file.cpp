// Mapped files as Python sees them: the bytes of weights, with the buffer protocol.
//
// Python's own mmap would do, but its last reference unmaps at once, which takes 27 ms for a GB that is in memory, on
// whatever thread drops it. Not here: who reads which bytes (aggml/gguf/file.py).
#include "common.h"

#include <sys/mman.h>

#include <cerrno>

namespace binding
{

namespace
{

struct MappedFile {
    void *data;
    size_t size;
    bool writable;
    // A private mapping: what is written stays in this process.
    MappedFile(int file, size_t n, bool writable_) : size(n), writable(writable_)
    {
        data = mmap(nullptr, n, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_PRIVATE, file, 0);
        if (data == MAP_FAILED) { // NOLINT: the macro is a cast of an integer
            PyErr_SetFromErrno(PyExc_OSError);
            throw nb::python_error();
        }
    }
    MappedFile(const MappedFile &) = delete;
    ~MappedFile()
    {
        ag_unmap(data, size);
    }
};

int mapped_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    MappedFile *file = nb::inst_ptr<MappedFile>(nb::handle(self));
    return PyBuffer_FillInfo(view, self, file->data, static_cast<Py_ssize_t>(file->size), !file->writable, flags);
}

PyType_Slot mapped_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void *>(mapped_getbuffer)}, {0, nullptr}};

} // namespace

void bind_mapped_file(nb::module_ &m)
{
    nb::class_<MappedFile>(m, "MappedFile", nb::type_slots(mapped_slots))
        .def(nb::init<int, size_t, bool>(), "file"_a, "size"_a, "writable"_a);
    m.def("unmapped", ag_unmapped, nb::call_guard<Unlocked>());
}

} // namespace binding
