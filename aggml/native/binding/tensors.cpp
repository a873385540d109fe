// Making tensors: a node costs Python a call and no line, so that a graph of thousands can be built on an event loop.
//
// The class of tensors is Python's, with slots; here they are filled at their offsets. Not here: what is refused, and
// in which words (tensor/making.py).
#include "common.h"

#include <structmember.h>

#include <unordered_map>

namespace binding
{

namespace
{

enum Slot {
    DTYPE,
    NE,
    NDIM,
    NB,
    NBYTES,
    OP,
    OP_PARAMS,
    SRC,
    VIEW_SRC,
    VIEW_OFFS,
    NAME,
    PLACEMENT,
    SPAN,
    ARRAY,
    FLAGS,
    FROZEN,
    N_SLOTS
};
constexpr const char *SLOTS[N_SLOTS] = {"dtype",     "ne",     "ndim",      "nb",        "nbytes", "op",
                                        "op_params", "src",    "view_src",  "view_offs", "name",   "placement",
                                        "_span",     "_array", "flag_bits", "frozen"};

struct Size {
    int64_t block, bytes; // elements of a block, and what it takes
};

struct Maker {
    nb::object type, check, zero;
    Py_ssize_t at[N_SLOTS];
    int64_t most;                               // bytes of a tensor
    std::unordered_map<PyObject *, Size> sizes; // by element type, which last as long as the process

    Maker(nb::object type_, nb::sequence types, int64_t most_, nb::object check_)
        : type(std::move(type_)), check(std::move(check_)), zero(nb::int_(0)), most(most_)
    {
        for (int i = 0; i < N_SLOTS; ++i) {
            nb::object slot = type.attr(SLOTS[i]);
            if (!Py_IS_TYPE(slot.ptr(), &PyMemberDescr_Type)) throw nb::value_error("expected a class with slots");
            at[i] = reinterpret_cast<PyMemberDescrObject *>(slot.ptr())->d_member->offset;
        }
        for (nb::handle row : types)
            sizes[nb::object(row[0]).release().ptr()] = {nb::cast<int64_t>(row[1]), nb::cast<int64_t>(row[2])};
    }
    Maker(const Maker &) = delete;

    PyObject *&slot(PyObject *tensor, Slot which) const
    {
        return *reinterpret_cast<PyObject **>(reinterpret_cast<char *>(tensor) + at[which]);
    }
    nb::object make(PyObject *const *values) const;
    nb::object node(nb::handle op, nb::handle dtype, nb::handle ne, nb::handle src, nb::handle op_params,
                    nb::handle name, int ndim) const;
    nb::object view(nb::handle op, nb::handle a, nb::handle ne, nb::handle strides, nb::handle nbytes,
                    nb::handle offset, nb::handle src, nb::handle op_params, nb::handle name, int ndim) const;
    nb::object like(nb::handle a, nb::handle op, nb::handle src, nb::handle view_src) const;
    PyObject *tensor(nb::handle a) const
    {
        if (!Py_IS_TYPE(a.ptr(), reinterpret_cast<PyTypeObject *>(type.ptr())))
            throw nb::type_error("expected a tensor");
        return a.ptr();
    }
};

// A tensor with these values in its slots, the first of which are given.
nb::object Maker::make(PyObject *const *values) const
{
    auto *cls = reinterpret_cast<PyTypeObject *>(type.ptr());
    nb::object made = nb::steal(cls->tp_alloc(cls, 0));
    if (!made.is_valid()) throw nb::python_error();
    for (int i = 0; i < N_SLOTS; ++i) slot(made.ptr(), static_cast<Slot>(i)) = Py_NewRef(values[i]);
    return made;
}

void extents_of(nb::handle ne, int64_t *out)
{
    if (!PyTuple_Check(ne.ptr()) || PyTuple_GET_SIZE(ne.ptr()) != 4)
        throw nb::value_error("expected a tuple of four extents");
    for (Py_ssize_t i = 0; i < 4; ++i) {
        out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(ne.ptr(), i));
        if (out[i] == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
    }
}

// The rank that was asked for, or what the extents need.
int rank(const int64_t *ne, int ndim)
{
    int least = 4;
    while (least > 1 && ne[least - 1] == 1) --least;
    return ndim > least ? ndim : least;
}

nb::object Maker::node(nb::handle op, nb::handle dtype, nb::handle ne, nb::handle src, nb::handle op_params,
                       nb::handle name, int ndim) const
{
    auto size = sizes.find(dtype.ptr());
    if (size == sizes.end() || !PyTuple_Check(src.ptr()))
        throw nb::type_error("expected an element type and a tuple of sources");
    const auto [block, bytes] = size->second;
    int64_t n[4], nb1 = 0, nb2 = 0, nb3 = 0, nbytes = 0;
    bool wrong = false;
    try {
        extents_of(ne, n);
        wrong = n[0] % block != 0 || __builtin_mul_overflow(n[0] / block, bytes, &nb1) ||
                __builtin_mul_overflow(nb1, n[1], &nb2) || __builtin_mul_overflow(nb2, n[2], &nb3) ||
                __builtin_mul_overflow(nb3, n[3], &nbytes);
    } catch (nb::python_error &error) {
        if (!error.matches(PyExc_OverflowError)) throw;
        wrong = true;
    }
    if (wrong || nbytes <= 0 || nbytes > most) {
        check(op, dtype, ne, src); // raises, but for tensors without elements
        if (wrong) throw nb::value_error("extents are negative or too large for any memory");
    }
    if (ndim == 0) {
        PyObject *first = PyTuple_GET_SIZE(src.ptr()) > 0 ? PyTuple_GET_ITEM(src.ptr(), 0) : Py_None;
        ndim = first == Py_None ? 1 : nb::cast<int>(nb::handle(slot(tensor(first), NDIM)));
    }
    nb::object strides = nb::steal(PyTuple_New(4)), total = nb::int_(nbytes), rank_ = nb::int_(rank(n, ndim));
    if (!strides.is_valid()) throw nb::python_error();
    const int64_t all[4] = {bytes, nb1, nb2, nb3};
    for (Py_ssize_t i = 0; i < 4; ++i) PyTuple_SET_ITEM(strides.ptr(), i, nb::int_(all[i]).release().ptr());
    PyObject *values[N_SLOTS] = {dtype.ptr(),     ne.ptr(),  rank_.ptr(), strides.ptr(), total.ptr(), op.ptr(),
                                 op_params.ptr(), src.ptr(), Py_None,     zero.ptr(),    name.ptr(),  Py_None,
                                 Py_None,         Py_None,   zero.ptr(),  Py_False};
    return make(values);
}

nb::object Maker::view(nb::handle op, nb::handle a, nb::handle ne, nb::handle strides, nb::handle nbytes,
                       nb::handle offset, nb::handle src, nb::handle op_params, nb::handle name, int ndim) const
{
    int64_t n[4];
    extents_of(ne, n);
    nb::object rank_ = nb::int_(rank(n, ndim));
    PyObject *root = slot(tensor(a), VIEW_SRC);
    PyObject *values[N_SLOTS] = {slot(a.ptr(), DTYPE),
                                 ne.ptr(),
                                 rank_.ptr(),
                                 strides.ptr(),
                                 nbytes.ptr(),
                                 op.ptr(),
                                 op_params.ptr(),
                                 src.ptr(),
                                 root == Py_None ? a.ptr() : root,
                                 offset.ptr(),
                                 name.ptr(),
                                 Py_None,
                                 Py_None,
                                 Py_None,
                                 zero.ptr(),
                                 Py_False};
    return make(values);
}

nb::object Maker::like(nb::handle a, nb::handle op, nb::handle src, nb::handle view_src) const
{
    PyObject *values[N_SLOTS];
    for (int i = 0; i < N_SLOTS; ++i) values[i] = slot(tensor(a), static_cast<Slot>(i));
    values[OP] = op.ptr();
    values[SRC] = src.ptr();
    values[VIEW_SRC] = view_src.ptr();
    if (view_src.is_none()) values[VIEW_OFFS] = zero.ptr();
    values[PLACEMENT] = values[SPAN] = values[ARRAY] = Py_None;
    values[FROZEN] = Py_True;
    return make(values);
}

} // namespace

void bind_tensors(nb::module_ &m)
{
    nb::class_<Maker>(m, "Maker")
        .def(nb::init<nb::object, nb::sequence, int64_t, nb::object>(), "type"_a, "types"_a, "most"_a, "check"_a)
        .def("node", &Maker::node, "op"_a, "dtype"_a, "ne"_a, "src"_a, "op_params"_a, "name"_a, "ndim"_a)
        .def("view", &Maker::view, "op"_a, "a"_a, "ne"_a, "nb"_a, "nbytes"_a, "offset"_a, "src"_a, "op_params"_a,
             "name"_a, "ndim"_a)
        .def("like", &Maker::like, "a"_a, "op"_a, "src"_a, "view_src"_a.none());
}

} // namespace binding
