// Plans: nodes in, steps out.
#include "objects.h"

namespace binding
{

int64_t item(PyObject *tuple, Py_ssize_t i)
{
    int64_t value = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    if (value == -1 && PyErr_Occurred()) throw nb::python_error();
    return value;
}

void four(PyObject *object, int64_t *out)
{
    if (!PyTuple_CheckExact(object) || PyTuple_GET_SIZE(object) != 4)
        throw nb::type_error("a tuple of four ints is needed");
    for (int i = 0; i < 4; ++i) out[i] = item(object, i);
}

// (type, address, in_arena, ne, nb), or None for an operand that is not given.
static agk_view view_of(PyObject *object)
{
    agk_view view = {};
    view.type = AGK_NONE;
    if (object == Py_None) return view;
    if (!PyTuple_CheckExact(object) || PyTuple_GET_SIZE(object) != 5)
        throw nb::type_error("an operand is a tuple of five");
    view.type = static_cast<int32_t>(item(object, 0));
    view.addr = PyLong_AsSize_t(PyTuple_GET_ITEM(object, 1));
    if (PyErr_Occurred()) throw nb::python_error();
    view.arena_mask = PyTuple_GET_ITEM(object, 2) == Py_True ? UINTPTR_MAX : 0;
    four(PyTuple_GET_ITEM(object, 3), view.ne);
    four(PyTuple_GET_ITEM(object, 4), view.nb);
    if (agk_traits(view.type)->name == nullptr) throw nb::type_error("an operand's element type is unknown here");
    return view;
}

static agk_node node_of(int op, nb::tuple dst, nb::tuple srcs, nb::bytes params)
{
    agk_node node = {};
    if (agk_op_name(op) == nullptr) throw nb::value_error("unknown op");
    if (nb::len(srcs) > AGK_MAX_SRC) throw nb::value_error("too many operands");
    if (params.size() != sizeof node.params) throw nb::value_error("op parameters are 64 bytes");
    node.op = op;
    node.n_src = static_cast<int32_t>(nb::len(srcs));
    node.dst = view_of(dst.ptr());
    for (int i = 0; i < node.n_src; ++i) node.src[i] = view_of(PyTuple_GET_ITEM(srcs.ptr(), i));
    memcpy(node.params, params.c_str(), sizeof node.params);
    return node;
}

// None, or (status, message): why this node cannot be part of a plan.
static nb::object plan_add(Plan &self, int op, const char *name, nb::tuple dst, nb::tuple srcs, nb::bytes params,
                           int writes_leaf)
{
    agk_node node = node_of(op, dst, srcs, params);
    char message[AGK_MESSAGE] = "";
    agk_status status = ag_plan_add(self.plan, &node, name, writes_leaf, message);
    if (status == AGK_OK) return nb::none();
    return nb::make_tuple(static_cast<int>(status), std::string(message));
}

std::vector<ag_storage *> storages_of(nb::handle sequence)
{
    std::vector<ag_storage *> out;
    for (nb::handle h : sequence) out.push_back(nb::cast<Storage &>(h).storage);
    return out;
}

static void plan_seal(Plan &self, nb::tuple reads, nb::tuple writes, nb::tuple partial)
{
    auto r = storages_of(reads), w = storages_of(writes), p = storages_of(partial);
    if (!ag_plan_seal(self.plan, r.data(), r.size(), w.data(), w.size(), p.data(), p.size())) throw std::bad_alloc();
}

static nb::list plan_steps(Plan &self)
{
    nb::list out;
    size_t index = 0;
    for (size_t i = 0; i < self.plan->n_steps; ++i) {
        const ag_step &step = self.plan->steps[i];
        while (self.plan->nodes[index] != step.node) ++index;
        out.append(nb::make_tuple(std::string(self.plan->names[index]), std::string(agk_op_name(step.node->op)),
                                  step.n_chunks));
    }
    return out;
}

void bind_plan(nb::module_ &m)
{
    nb::class_<Plan>(m, "Plan")
        .def(nb::init<uint32_t, size_t>(), "cpu"_a, "work_base"_a)
        .def("add", plan_add, "op"_a, "name"_a, "dst"_a, "srcs"_a, "params"_a, "writes_leaf"_a)
        .def("seal", plan_seal, "reads"_a, "writes"_a, "partial"_a)
        .def("steps", plan_steps)
        .def_prop_ro("n_steps", [](Plan &p) { return p.plan->n_steps; })
        .def_prop_ro("arena_size", [](Plan &p) { return ag_plan_arena_size(p.plan); })
        .def_prop_ro("cost_ns", [](Plan &p) { return p.plan->cost; });
}

} // namespace binding
