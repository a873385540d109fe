// The tables of native/table as Python reads them, one tuple a row: aggml/ops/table.py, aggml/dtype.py, aggml/native.
#include "common.h"

namespace binding
{

namespace
{

const char *const unit_names[] = {
#define NAME(name) #name,
    AGK_EACH_UNITS(NAME)};
const char *const stage_names[] = {AGK_EACH_STAGE(NAME)};
#undef NAME

nb::tuple sources_of(uint32_t traits, int first_bit)
{
    nb::list out;
    for (int i = 0; i < AGK_MAX_SRC; ++i) {
        if ((traits >> (first_bit + i) & 1u) != 0) out.append(i);
    }
    return nb::tuple(out);
}

nb::list traits_of(uint32_t traits)
{
    nb::list out;
#define TRAIT(name, bit) \
    if ((traits >> bit & 1u) != 0) out.append(#name);
    AGK_EACH_TRAIT(TRAIT)
#undef TRAIT
    return out;
}

// name, group, units, ps, in_place, stage, traits by name, target sources, updated sources; the row is the op's number.
nb::list ops()
{
    nb::list out;
    for (const agk_op_traits &op : agk_ops)
        out.append(nb::make_tuple(op.name, op.group, unit_names[op.units], op.ps, static_cast<int>(op.in_place),
                                  stage_names[op.stage], nb::tuple(traits_of(op.traits)),
                                  sources_of(op.traits, AGK_TARGETS_AT), sources_of(op.traits, AGK_UPDATES_AT)));
    return out;
}

nb::object text_or_none(const char *text)
{
    return std::string(text) == "NONE" ? nb::none() : nb::object(nb::str(text));
}

// id, NAME, name, numpy, block, bytes, alignment, group, dot (-1: none), and whether elements can be read, written,
// fitted to weights, fitted with an importance matrix alone.
nb::list types()
{
    nb::list out;
    for (int id = 0; id < AGK_TYPE_COUNT; ++id) {
        const agk_type_traits &t = *agk_traits(id);
        if (t.name == nullptr) continue;
        out.append(nb::make_tuple(id, t.key, t.name, text_or_none(t.numpy), t.blck_size, t.type_size, t.alignment,
                                  t.group, static_cast<int>(t.vec_dot_type), t.to_float != nullptr,
                                  t.from_float != nullptr, t.quantize != nullptr, t.needs_imatrix));
    }
    return out;
}

// name, what a machine must have, what kernels use besides; bits are those of `features`.
nb::list isas()
{
    nb::list out;
    for (size_t i = 0; i < agk_n_isas; ++i)
        out.append(nb::make_tuple(agk_isas[i].name, agk_isas[i].needs, agk_isas[i].takes));
    return out;
}

// NAME, ggml's name, bit.
nb::list features()
{
    nb::list out;
    for (size_t i = 0; i < agk_n_features; ++i)
        out.append(nb::make_tuple(agk_features[i].name, text_or_none(agk_features[i].ggml), agk_features[i].bit));
    return out;
}

} // namespace

void bind_tables(nb::module_ &m)
{
    m.def("ops", ops);
    m.def("types", types);
    m.def("isas", isas);
    m.def("features", features);
}

} // namespace binding
