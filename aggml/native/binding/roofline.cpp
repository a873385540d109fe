// The peak performance of the machine, for aggml/devices/cpu/roofline.py.
#include "common.h"
extern "C" {
#include "runtime/roofline.h"
}

namespace binding
{

namespace
{

int checked(int threads)
{
    if (threads < 1 || threads > AG_ROOFLINE_THREADS)
        raise(exceptions.invalid_argument, "[roofline] threads must be 1 to " + std::to_string(AG_ROOFLINE_THREADS));
    return threads;
}

double peak(const std::string &kernel, const std::string &isa, int threads, double seconds)
{
    checked(threads);
    Unlocked unlocked;
    return ag_roofline_peak(kernel.c_str(), isa.c_str(), threads, seconds);
}

// Both begin at a multiple of 64 bytes.
double move(nb::handle to, nb::handle from, int repeats, int threads)
{
    checked(threads);
    BufferView source(from, PyBUF_SIMPLE);
    const auto size = static_cast<size_t>(source.b.len);
    const auto *data = static_cast<const char *>(source.b.buf);
    bool aligned = reinterpret_cast<uintptr_t>(data) % 64 == 0;
    if (to.is_none()) {
        if (!aligned) raise(exceptions.invalid_argument, "[roofline] memory must begin at a multiple of 64 bytes");
        Unlocked unlocked;
        return ag_roofline_move(nullptr, data, size, repeats, threads);
    }
    BufferView target(to, PyBUF_WRITABLE);
    auto *out = static_cast<char *>(target.b.buf);
    aligned = aligned && reinterpret_cast<uintptr_t>(out) % 64 == 0;
    if (!aligned || static_cast<size_t>(target.b.len) < size)
        raise(exceptions.invalid_argument,
              "[roofline] memory must begin at a multiple of 64 bytes and be large enough");
    Unlocked unlocked;
    return ag_roofline_move(out, data, size, repeats, threads);
}

} // namespace

void bind_roofline(nb::module_ &m)
{
    m.def("roofline_peak", peak, "kernel"_a, "isa"_a, "threads"_a, "seconds"_a);
    m.def("roofline_move", move, "to"_a.none(), "source"_a, "repeats"_a, "threads"_a);
}

} // namespace binding
