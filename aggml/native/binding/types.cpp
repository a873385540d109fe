// Element types and kernel variants: conversions of whole arrays without the GIL.
#include "common.h"

#include <optional>

namespace binding
{

namespace
{

const agk_type_traits *convertible(int type, int64_t n)
{
    const agk_type_traits *traits = agk_traits(type);
    if (traits->name == nullptr) throw nb::value_error("unknown element type");
    if (n % traits->blck_size != 0) throw nb::value_error("the number of elements must be a multiple of the block");
    return traits;
}

// None, or (whether there is no quantizer at all, message): why rows cannot become blocks of this type.
nb::object quantize_problem(int type, bool weighted)
{
    const agk_type_traits *traits = convertible(type, 0);
    if (traits->quantize == nullptr && traits->from_float == nullptr)
        return nb::make_tuple(true, std::string("there is no quantizer for ") + traits->name);
    if (traits->needs_imatrix && !weighted)
        return nb::make_tuple(false, std::string(traits->name) + " needs an importance matrix");
    return nb::none();
}

// ggml_quantize_chunk: the importance matrix has one weight per column and is ignored by types that cannot use it.
void quantize(int type, nb::handle src, nb::handle dst, int64_t n_per_row, nb::object imatrix)
{
    BufferView x(src, PyBUF_C_CONTIGUOUS), y(dst, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    std::optional<BufferView> weights;
    if (!imatrix.is_none()) weights.emplace(imatrix, PyBUF_C_CONTIGUOUS);
    int64_t n = x.b.len / 4;
    const agk_type_traits *traits = convertible(type, n_per_row);
    if (!quantize_problem(type, weights.has_value()).is_none() || n_per_row < 1 || n % n_per_row != 0 ||
        static_cast<size_t>(y.b.len) != agk_row_size(type, n) || (weights && weights->b.len != n_per_row * 4)) {
        throw nb::value_error("the sizes of rows, result and importance matrix do not fit together");
    }
    Unlocked unlocked;
    if (traits->quantize != nullptr)
        traits->quantize(static_cast<const float *>(x.b.buf), y.b.buf, n / n_per_row, n_per_row,
                         weights ? static_cast<const float *>(weights->b.buf) : nullptr);
    else
        traits->from_float(static_cast<const float *>(x.b.buf), y.b.buf, n);
}

bool has_to_float(int type)
{
    return convertible(type, 0)->to_float != nullptr;
}

void to_float(int type, nb::handle src, nb::handle dst)
{
    BufferView x(src, PyBUF_C_CONTIGUOUS), y(dst, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    int64_t n = y.b.len / 4;
    const agk_type_traits *traits = convertible(type, n);
    if (traits->to_float == nullptr || static_cast<size_t>(x.b.len) != agk_row_size(type, n))
        throw nb::value_error("the blocks do not have the size of the result, or there is no conversion");
    Unlocked unlocked;
    traits->to_float(x.b.buf, static_cast<float *>(y.b.buf), n);
}

// Plain types only: the best conversion that `cpu` can run.
void convert(int type, uint32_t cpu, bool reading, nb::handle src, nb::handle dst)
{
    BufferView x(src, PyBUF_C_CONTIGUOUS), y(dst, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    const agk_type_traits *traits = convertible(type, 0);
    agk_to_float_fn *read = reading ? agk_reader(type, cpu & agk_cpu_features()) : nullptr;
    agk_from_float_fn *write = type == AGK_I32 ? agk_f32_to_i32 : agk_writer(type, cpu & agk_cpu_features());
    if (traits->blck_size != 1 || (reading ? read == nullptr : write == nullptr))
        raise(exceptions.unsupported, std::string("[convert] there is no conversion for ") + traits->name);
    const Py_ssize_t n = (reading ? y.b.len : x.b.len) / 4;
    if (n * 4 != (reading ? y.b.len : x.b.len) ||
        n * static_cast<Py_ssize_t>(traits->type_size) != (reading ? x.b.len : y.b.len))
        throw nb::value_error("the sizes of source and result do not fit together");
    Unlocked unlocked;
    if (reading)
        read(x.b.buf, static_cast<float *>(y.b.buf), n);
    else
        write(static_cast<const float *>(x.b.buf), y.b.buf, n);
}

nb::tuple type_traits(int type)
{
    const agk_type_traits *traits = convertible(type, 0);
    return nb::make_tuple(traits->to_float != nullptr, traits->from_float != nullptr,
                          traits->quantize != nullptr || traits->from_float != nullptr,
                          static_cast<int>(traits->vec_dot_type), traits->needs_imatrix);
}

// (name, why): the scheme that computes [m rows of a] x [n columns of b], both of k elements (lower/mul_mat/README.md).
nb::tuple mul_mat_scheme(int a, int b, int64_t m, int64_t n, int64_t k, uint32_t cpu, bool weights)
{
    convertible(a, k);
    convertible(b, k);
    const agk_mm_problem problem = {a, b, m, n, k, 1, weights, cpu, false, false, false};
    const agk_mm_preference *row = agk_mm_prefer(&problem, nullptr);
    return nb::make_tuple(row->scheme->name, row->why);
}

nb::list variants()
{
    nb::list out;
    for (size_t i = 0; i < agk_n_variants; ++i) {
        const agk_variant &v = agk_variants[i];
        const uint32_t wanted = v.needs | v.gate;
        out.append(
            nb::make_tuple(std::string(v.kernel), std::string(v.isa), wanted, (wanted & ~agk_cpu_features()) == 0));
    }
    return out;
}

} // namespace

void bind_types(nb::module_ &m)
{
    m.def("variants", variants);
    m.def("mul_mat_scheme", mul_mat_scheme, "a"_a, "b"_a, "m"_a, "n"_a, "k"_a, "cpu"_a, "weights"_a = false);
    m.def("quantize_problem", quantize_problem, "type"_a, "weighted"_a);
    m.def("has_to_float", has_to_float, "type"_a);
    m.def("quantize", quantize, "type"_a, "src"_a, "dst"_a, "n_per_row"_a, "imatrix"_a.none());
    m.def("to_float", to_float, "type"_a, "src"_a, "dst"_a);
    m.def("convert", convert, "type"_a, "cpu"_a, "reading"_a, "src"_a, "dst"_a);
    m.def("type_traits", type_traits, "type"_a);
}

} // namespace binding
