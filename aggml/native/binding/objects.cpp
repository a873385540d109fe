// Errors, storages, memory, notifiers and pools as Python sees them.
#include "objects.h"

#include <sys/mman.h>

#include <cstring>

namespace binding
{

namespace
{

bool unmapped()
{
    Unlocked unlocked;
    return ag_unmapped();
}

} // namespace

nb::object wrap_error(ag_error *error)
{
    if (error == nullptr) return nb::none();
    return nb::cast(new Error(error), nb::rv_policy::take_ownership);
}

Memory::Memory(size_t n, size_t alignment) : size(n)
{
    constexpr size_t large = size_t{1} << 16, page = 4096;
    if (n == 0) return;
    void *p = nullptr;
    if (n <= PTRDIFF_MAX - page && alignment <= page) {
        if (n >= large) {
            mapped = (n + page - 1) & ~(page - 1);
            const auto map = [&] {
                return mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            };
            p = map();
            if (p == MAP_FAILED && unmapped()) p = map(); // memory was still being given back
            if (p == MAP_FAILED) p = nullptr;
#ifdef MADV_HUGEPAGE
            if (p != nullptr) madvise(p, mapped, MADV_HUGEPAGE);
#endif
        } else if (posix_memalign(&p, alignment, n) == 0) {
            memset(p, 0, n);
        }
    }
    if (p == nullptr) raise(exceptions.alloc_failed, "[Memory] no memory for " + std::to_string(n) + " bytes");
    data = static_cast<uint8_t *>(p);
}

Memory::~Memory()
{
    if (mapped != 0) {
        ag_unmap(data, mapped);
    } else {
        free(data);
    }
}

int64_t item(PyObject *tuple, Py_ssize_t i)
{
    int64_t value = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    if (value == -1 && PyErr_Occurred()) throw nb::python_error();
    return value;
}

void four(PyObject *object, int64_t *out)
{
    if (!PyTuple_CheckExact(object) || PyTuple_GET_SIZE(object) != 4)
        throw nb::type_error("expected a tuple of four ints");
    for (int i = 0; i < 4; ++i) out[i] = item(object, i);
}

size_t reach(const int64_t *ne, const int64_t *nb, size_t item)
{
    int64_t end = static_cast<int64_t>(item);
    bool empty = false, wrong = end < 0;
    for (int i = 0; i < 4; ++i) {
        int64_t step = 0;
        wrong = wrong || ne[i] < 0 || nb[i] < 0 || __builtin_mul_overflow(ne[i] > 0 ? ne[i] - 1 : 0, nb[i], &step) ||
                __builtin_add_overflow(end, step, &end);
        empty = empty || ne[i] == 0;
    }
    if (wrong) throw nb::value_error("extents or strides are negative or too large for any memory");
    return empty ? 0 : static_cast<size_t>(end);
}

Span::Span(uintptr_t a, nb::tuple ne_, nb::tuple nb__, size_t n, bool w, Storage &s, nb::object k)
    : address(a), size(n), whole(w), storage(s.storage), keep(std::move(k))
{
    four(ne_.ptr(), ne);
    four(nb__.ptr(), nb);
    bytes = reach(ne, nb, size);
    if (bytes > 0 && (a < storage->first || a > storage->end || bytes > storage->end - a))
        throw nb::value_error("the tensor reaches beyond the end of its storage");
    ag_storage_ref(storage);
}

Pool::Pool(int n_threads, int spin_us, int priority, bool strict, nb::sequence mask)
{
    ag_pool_params params = {};
    params.n_threads = n_threads;
    params.spin_us = spin_us;
    params.priority = priority;
    params.strict = strict;
    size_t n = nb::len(mask);
    for (size_t i = 0; i < n && i < sizeof params.mask; ++i) {
        params.mask[i] = nb::cast<bool>(mask[i]);
        params.has_mask = params.has_mask || params.mask[i];
    }
    Unlocked unlocked;
    pool = ag_pool_new(&params);
    if (pool == nullptr) throw std::bad_alloc();
}

Pool::~Pool()
{
    Unlocked unlocked; // joins its workers, which may be about to add a pending call for the GIL's holder
    ag_pool_unref(pool);
}

namespace
{

int memory_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    Memory *memory = nb::inst_ptr<Memory>(nb::handle(self));
    static char none;
    return PyBuffer_FillInfo(view, self, memory->size ? static_cast<void *>(memory->data) : &none,
                             static_cast<Py_ssize_t>(memory->size), 0, flags);
}

PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void *>(memory_getbuffer)}, {0, nullptr}};

} // namespace

void bind_objects(nb::module_ &m)
{
    nb::class_<Error>(m, "Error")
        .def_static(
            "make",
            [](int code, const std::string &device, const std::string &operation, const std::string &tensor,
               const std::string &text) {
                ag_error *error = ag_error_new(static_cast<ag_code>(code), device.c_str(), operation.c_str(),
                                               tensor.c_str(), text.c_str());
                if (error == nullptr) throw std::bad_alloc();
                return new Error(error);
            },
            "code"_a, "device"_a, "operation"_a, "tensor"_a, "text"_a, nb::rv_policy::take_ownership)
        .def_prop_ro("code", [](Error &e) { return static_cast<int>(e.error->code); })
        .def_prop_ro("device", [](Error &e) { return text_of(e.error->device); })
        .def_prop_ro("operation", [](Error &e) { return text_of(e.error->operation); })
        .def_prop_ro("tensor", [](Error &e) { return text_of(e.error->tensor); })
        .def_prop_ro("text", [](Error &e) { return text_of(e.error->text); })
        .def_prop_rw(
            "seen", [](Error &e) { return e.error->seen.load(); },
            [](Error &e, bool seen) { e.error->seen.store(seen); })
        .def_prop_rw(
            "exception",
            [](Error &e) -> nb::object {
                void *user = e.error->user.load();
                return user == nullptr ? nb::none() : nb::borrow(static_cast<PyObject *>(user));
            },
            [](Error &e, nb::object exception) { // the first one stays: all failures share it as their cause
                void *none = nullptr;
                if (e.error->user.compare_exchange_strong(none, exception.ptr())) exception.release();
            });

    nb::class_<Storage>(m, "Storage")
        .def(nb::init<const char *, uintptr_t, size_t, int, bool>(), "name"_a, "address"_a = 0, "size"_a = 0,
             "backing"_a = 0, "is_file"_a = false)
        .def_prop_ro("name", [](Storage &s) { return text_of(s.storage->name); })
        .def("poison", [](Storage &s) { return wrap_error(ag_storage_poison(s.storage)); });

    nb::class_<Memory>(m, "Memory", nb::type_slots(memory_slots))
        .def(nb::init<size_t, size_t>(), "size"_a, "alignment"_a)
        .def_prop_ro("address", [](Memory &memory) { return reinterpret_cast<uintptr_t>(memory.data); })
        .def_prop_ro("size", [](Memory &memory) { return memory.size; });

    nb::class_<Pool>(m, "Pool")
        .def(nb::init<int, int, int, bool, nb::sequence>(), "n_threads"_a, "spin_us"_a, "priority"_a, "strict"_a,
             "mask"_a)
        .def_prop_ro("n_threads", [](Pool &p) { return ag_pool_n_threads(p.pool); })
        .def(
            "grow",
            [](Pool &p, int n, bool widen) {
                Unlocked unlocked;
                return ag_pool_grow(p.pool, n, widen);
            },
            "n_threads"_a, "widen"_a)
        .def_prop_ro("width", [](Pool &p) { return ag_pool_width(p.pool); })
        .def("pause", [](Pool &p) { ag_pool_pause(p.pool); })
        .def_prop_ro("paused", [](Pool &p) { return ag_pool_paused(p.pool); })
        .def_prop_ro("sleepers", [](Pool &p) { return ag_pool_sleepers(p.pool); })
        .def("resume", [](Pool &p) { ag_pool_resume(p.pool); })
        .def("close", [](Pool &p) -> nb::object { // None, or a stream that has work: its name, and how much
            char name[AG_NAME];
            uint64_t pending = 0;
            bool closed;
            {
                Unlocked unlocked;
                closed = ag_pool_close(p.pool, name, &pending);
            }
            return closed ? nb::none() : nb::object(nb::make_tuple(text_of(name), pending));
        });
}

} // namespace binding
