// Element types and kernel variants: conversions of whole arrays without the GIL.
#include "common.h"

namespace binding
{

namespace
{

const agk_type_traits *convertible(int type, int64_t n)
{
    const agk_type_traits *traits = agk_traits(type);
    if (traits->name == nullptr) throw nb::value_error("the element type is unknown here");
    if (n % traits->blck_size != 0) throw nb::value_error("the number of elements is no multiple of the block");
    return traits;
}

// ggml_quantize_chunk: the importance matrix has one weight per column and is ignored by types that cannot use it.
void quantize(int type, nb::handle src, nb::handle dst, int64_t n_per_row, nb::object imatrix)
{
    BufferView x(src, PyBUF_C_CONTIGUOUS), y(dst, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    int64_t n = x.b.len / 4;
    const agk_type_traits *traits = convertible(type, n_per_row);
    if (traits->quantize == nullptr && traits->from_float == nullptr)
        raise(exceptions.unsupported, std::string("[quantize] there is no quantizer for ") + traits->name);
    if (n_per_row < 1 || n % n_per_row != 0 || static_cast<size_t>(y.b.len) != agk_row_size(type, n))
        throw nb::value_error("rows and result do not fit together");
    if (imatrix.is_none()) {
        if (traits->needs_imatrix)
            raise(exceptions.invalid_argument,
                  std::string("[quantize] ") + traits->name + " needs an importance matrix");
        Unlocked unlocked;
        if (traits->quantize != nullptr)
            traits->quantize(static_cast<const float *>(x.b.buf), y.b.buf, n / n_per_row, n_per_row, nullptr);
        else
            traits->from_float(static_cast<const float *>(x.b.buf), y.b.buf, n);
        return;
    }
    BufferView weights(imatrix, PyBUF_C_CONTIGUOUS);
    if (weights.b.len != n_per_row * 4) throw nb::value_error("the importance matrix has another size");
    Unlocked unlocked;
    if (traits->quantize != nullptr)
        traits->quantize(static_cast<const float *>(x.b.buf), y.b.buf, n / n_per_row, n_per_row,
                         static_cast<const float *>(weights.b.buf));
    else
        traits->from_float(static_cast<const float *>(x.b.buf), y.b.buf, n);
}

void to_float(int type, nb::handle src, nb::handle dst)
{
    BufferView x(src, PyBUF_C_CONTIGUOUS), y(dst, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    int64_t n = y.b.len / 4;
    const agk_type_traits *traits = convertible(type, n);
    if (traits->to_float == nullptr)
        raise(exceptions.unsupported, std::string("[dequantize] there is no conversion from ") + traits->name);
    if (static_cast<size_t>(x.b.len) != agk_row_size(type, n)) throw nb::value_error("the blocks have another size");
    Unlocked unlocked;
    traits->to_float(x.b.buf, static_cast<float *>(y.b.buf), n);
}

nb::list variants()
{
    nb::list out;
    for (size_t i = 0; i < agk_n_variants; ++i) {
        const agk_variant &v = agk_variants[i];
        out.append(
            nb::make_tuple(std::string(v.kernel), std::string(v.isa), v.needs, (v.needs & ~agk_cpu_features()) == 0));
    }
    return out;
}

} // namespace

void bind_types(nb::module_ &m)
{
    m.def("variants", variants);
    m.def("op_find", [](const char *name) { return agk_op_find(name); }, "name"_a);
    m.def(
        "type_name",
        [](int type) -> nb::object {
            const char *name = agk_traits(type)->name;
            return name == nullptr ? nb::none() : nb::cast(std::string(name));
        },
        "type"_a);
    m.def("quantize", quantize, "type"_a, "src"_a, "dst"_a, "n_per_row"_a, "imatrix"_a.none());
    m.def("to_float", to_float, "type"_a, "src"_a, "dst"_a);
}

} // namespace binding
