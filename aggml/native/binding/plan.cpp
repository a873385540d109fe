// Plans: nodes in, steps out.
#include "objects.h"

namespace binding
{

// (type, address, in_arena, ne, nb, bytes from there to the end of its storage), or None for an operand that is not
// given.
static agk_view view_of(PyObject *object)
{
    agk_view view = {};
    view.type = AGK_NONE;
    if (object == Py_None) return view;
    if (!PyTuple_CheckExact(object) || PyTuple_GET_SIZE(object) != 6)
        throw nb::type_error("an operand must be a tuple of six");
    view.type = static_cast<int32_t>(item(object, 0));
    view.addr = PyLong_AsSize_t(PyTuple_GET_ITEM(object, 1));
    if (PyErr_Occurred()) throw nb::python_error();
    view.arena_mask = PyTuple_GET_ITEM(object, 2) == Py_True ? UINTPTR_MAX : 0;
    four(PyTuple_GET_ITEM(object, 3), view.ne);
    four(PyTuple_GET_ITEM(object, 4), view.nb);
    const agk_type_traits *traits = agk_traits(view.type);
    if (traits->name == nullptr) throw nb::type_error("unknown element type of an operand");
    // A view that cuts blocks, or whose blocks are not contiguous, has no elements: every lowering refuses it.
    const bool whole = view.ne[0] % traits->blck_size == 0 &&
                       (traits->blck_size == 1 || view.nb[0] == static_cast<int64_t>(traits->type_size));
    const int64_t blocks[4] = {whole ? view.ne[0] / traits->blck_size : 0, view.ne[1], view.ne[2], view.ne[3]};
    const int64_t room = item(object, 5);
    if (room < 0 || reach(blocks, view.nb, traits->type_size) > static_cast<size_t>(room))
        throw nb::value_error("an operand reaches beyond the end of its storage");
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

// (op, index of the other operand or -1, whether that comes first, params): operations that are fused with the node.
static void take_stages(agk_node &node, nb::tuple stages)
{
    if (nb::len(stages) > AGK_MAX_STAGES) throw nb::value_error("too many stages");
    for (nb::handle h : stages) {
        nb::tuple given = nb::cast<nb::tuple>(h);
        if (nb::len(given) != 4) throw nb::type_error("a stage must be a tuple of four");
        agk_stage stage = {};
        stage.op = nb::cast<int>(given[0]);
        stage.operand = nb::cast<int>(given[1]);
        stage.first = nb::cast<bool>(given[2]);
        nb::bytes params = nb::cast<nb::bytes>(given[3]);
        if (agk_op_name(stage.op) == nullptr) throw nb::value_error("unknown op");
        if (stage.operand >= node.n_src) throw nb::value_error("a stage names an operand that the node does not have");
        if (params.size() < sizeof stage.params) throw nb::value_error("op parameters are 64 bytes");
        memcpy(stage.params, params.c_str(), sizeof stage.params);
        node.stage[node.n_stages++] = stage;
    }
}

// None, or (status, message): why this node cannot be part of a plan.
static nb::object plan_add(Plan &self, int op, const char *name, nb::tuple dst, nb::tuple srcs, nb::bytes params,
                           int writes_leaf, int number, nb::tuple stages, nb::object weights, bool for_columns)
{
    agk_node node = node_of(op, dst, srcs, params);
    node.number = number;
    node.for_columns = for_columns;
    take_stages(node, stages);
    char message[AGK_MESSAGE] = "";
    agk_status status = ag_plan_add(self.plan, &node, name, writes_leaf,
                                    weights.is_none() ? nullptr : nb::cast<Storage &>(weights).storage, message);
    if (status == AGK_OK) return nb::none();
    return nb::make_tuple(static_cast<int>(status), text_of(message));
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

// "mul_mat+add+gelu": all that the node stands for. The first stage of a chain is its own operation.
static std::string label_of(const agk_node &node)
{
    std::string label = agk_op_name(node.op);
    for (int i = node.op == AGK_OP_mul_mat ? 0 : 1; i < node.n_stages; ++i)
        label += std::string("+") + agk_op_name(node.stage[i].op);
    return label;
}

static nb::list plan_steps(Plan &self)
{
    nb::list out;
    size_t index = 0, together = 0; // so many steps from here on run beside the one before
    for (size_t i = 0; i < self.plan->n_steps; ++i) {
        const ag_step &step = self.plan->steps[i];
        while (self.plan->nodes[index] != step.node) index = (index + 1) % self.plan->n_nodes; // mostly the next one
        out.append(nb::make_tuple(text_of(self.plan->names[index]), label_of(*step.node), step.n_chunks, together > 0));
        together = together > 0 ? together - 1 : step.n_together > 1 ? step.n_together - 1 : 0;
    }
    return out;
}

void bind_plan(nb::module_ &m)
{
    nb::class_<Plan>(m, "Plan")
        .def(nb::init<uint32_t, size_t>(), "cpu"_a, "work_base"_a)
        .def("add", plan_add, "op"_a, "name"_a, "dst"_a, "srcs"_a, "params"_a, "writes_leaf"_a, "number"_a = 0,
             "stages"_a = nb::tuple(), "weights"_a.none() = nb::none(), "for_columns"_a = false)
        .def("seal", plan_seal, "reads"_a, "writes"_a, "partial"_a)
        .def("steps", plan_steps)
        .def_prop_ro("n_steps", [](Plan &p) { return p.plan->n_steps; })
        .def_prop_ro("arena_size", [](Plan &p) { return ag_plan_arena_size(p.plan); })
        .def_prop_ro("cost_ns", [](Plan &p) { return p.plan->cost; })
        .def_prop_ro("n_packed", [](Plan &p) { return p.plan->n_packed; });
    m.def("inline_work", [] { return nb::make_tuple(ag_inline_work(false), ag_inline_work(true)); });
    m.def("packed_bytes", ag_packed_in_use);
    m.def("packed_of", [](Storage &s) { return ag_packed_of(s.storage); }, "storage"_a);
    m.def(
        "packed_size",
        [](int type, int64_t k, int64_t rows, int64_t matrices) {
            if (k < 0 || rows < 0 || matrices < 0) throw nb::value_error("a negative extent");
            return ag_packed_size(type, k, rows, matrices);
        },
        "type"_a, "k"_a, "rows"_a, "matrices"_a);
    m.def("packed_limit", ag_packed_limit);
    m.def("set_packed_limit", ag_packed_set_limit, "nbytes"_a);
}

} // namespace binding
