// CUDA devices, their memory, modules and plans. Their streams are Stream objects and their plans Plan objects, so the
// other rooms need not tell them apart from those of the CPU.
//
// Not here: which devices exist and what is compiled for them (devices/cuda/).
#include "objects.h"

extern "C" {
#include "cuda/driver.h"
#include "cuda/streams.h"
}

#include <cstring>

namespace binding
{

namespace
{

struct CudaModule {
    ag_cuda_module *module;
    explicit CudaModule(ag_cuda_module *m) : module(m)
    {
        if (module == nullptr) throw std::bad_alloc();
    }
    CudaModule(const CudaModule &) = delete;
    ~CudaModule()
    {
        ag_cuda_module_unref(module);
    }
};

struct CudaDevice {
    ag_cuda_device *device;
    CudaDevice(int ordinal, const char *name) : device(ag_cuda_device_new(ordinal, name))
    {
        if (device == nullptr) throw std::bad_alloc();
    }
    CudaDevice(const CudaDevice &) = delete;
    ~CudaDevice()
    {
        ag_cuda_device_unref(device);
    }
    // None, or the Error: the package makes the exception.
    template <typename Call> nb::object without_gil(Call call)
    {
        ag_error *error;
        {
            Unlocked unlocked;
            error = call(device);
        }
        return wrap_error(error);
    }
};

nb::object alloc(CudaDevice &self, size_t size, bool host)
{
    uint64_t address = 0;
    nb::object error = self.without_gil([&](ag_cuda_device *device) {
        if (!host) return ag_cuda_alloc(device, size, &address);
        void *pinned = nullptr;
        ag_error *e = ag_cuda_host_alloc(device, size, &pinned);
        address = reinterpret_cast<uintptr_t>(pinned);
        return e;
    });
    return nb::make_tuple(address, error);
}

nb::tuple memory(CudaDevice &self)
{
    size_t free = 0, total = 0;
    nb::object error = self.without_gil([&](ag_cuda_device *device) { return ag_cuda_memory(device, &free, &total); });
    return nb::make_tuple(free, total, error);
}

void three(nb::handle tuple, unsigned *out)
{
    if (!PyTuple_CheckExact(tuple.ptr()) || PyTuple_GET_SIZE(tuple.ptr()) != 3)
        throw nb::type_error("expected a tuple of three ints");
    for (Py_ssize_t i = 0; i < 3; ++i) out[i] = static_cast<unsigned>(item(tuple.ptr(), i));
}

// A plan of a CUDA device while it is made; `finish` gives the Plan.
struct CudaPlan {
    ag_cuda_plan *plan;
    CudaPlan(CudaDevice &device, bool overlaps) : plan(ag_cuda_plan_new(device.device, overlaps))
    {
        if (plan == nullptr) throw std::bad_alloc();
    }
    CudaPlan(const CudaPlan &) = delete;
    ~CudaPlan()
    {
        ag_cuda_plan_free(plan);
    }
};

void plan_node(CudaPlan &self, const char *name, const char *op, int64_t fault, nb::sequence partial)
{
    if (!ag_cuda_plan_node(self.plan, name, op, fault)) throw std::bad_alloc();
    for (nb::handle index : partial) {
        if (!ag_cuda_plan_writes_partial(self.plan, nb::cast<size_t>(index))) throw std::bad_alloc();
    }
}

std::vector<uint32_t> offsets_in(const nb::bytes &args, const nb::sequence &relative)
{
    std::vector<uint32_t> at;
    for (nb::handle offset : relative) {
        at.push_back(nb::cast<uint32_t>(offset));
        if (at.back() + sizeof(uint64_t) > args.size())
            throw nb::value_error("the place of an address lies beyond the end of the arguments");
    }
    return at;
}

void plan_launch(CudaPlan &self, CudaModule &module, const char *kernel, nb::handle grid, nb::handle block,
                 unsigned shared, nb::bytes args, nb::sequence relative, int when)
{
    unsigned g[3], b[3];
    three(grid, g);
    three(block, b);
    std::vector<uint32_t> at = offsets_in(args, relative);
    if (!ag_cuda_plan_launch(self.plan, module.module, kernel, g, b, shared, args.c_str(), args.size(), at.data(),
                             at.size())) {
        throw std::bad_alloc();
    }
    ag_cuda_plan_when(self.plan, when);
}

void plan_gemm(CudaPlan &self, nb::bytes args, nb::sequence relative)
{
    std::vector<uint32_t> at = offsets_in(args, relative);
    if (!ag_cuda_plan_gemm(self.plan, args.c_str(), args.size(), at.data(), at.size()))
        throw nb::value_error("no memory, or these are not the arguments of a product");
}

// Several GPUs that NCCL sums over.
struct CudaGroup {
    ag_cuda_group *group = nullptr;
    CudaGroup(nb::sequence devices, const char *path)
    {
        std::vector<ag_cuda_device *> found;
        for (nb::handle device : devices) found.push_back(nb::cast<CudaDevice &>(device).device);
        group = ag_cuda_group_new(found.data(), found.size(), path);
        if (group == nullptr) throw std::bad_alloc();
    }
    CudaGroup(const CudaGroup &) = delete;
    ~CudaGroup()
    {
        ag_cuda_group_unref(group);
    }
    nb::object open()
    {
        ag_error *error;
        {
            Unlocked unlocked;
            error = ag_cuda_group_open(group);
        }
        return wrap_error(error);
    }
};

// One sum of a group, which the plans of its GPUs share.
struct CudaSum {
    ag_cuda_sum *sum;
    size_t n;
    CudaSum(CudaGroup &group, size_t count, int type) : n(ag_cuda_group_size(group.group))
    {
        if (type < 0 || type > 2) throw nb::value_error("the type must be 0 (f32), 1 (f16) or 2 (bf16)");
        sum = ag_cuda_sum_new(group.group, count, type);
        if (sum == nullptr) throw std::bad_alloc();
    }
    CudaSum(const CudaSum &) = delete;
    ~CudaSum()
    {
        ag_cuda_sum_unref(sum);
    }
};

void plan_sum(CudaPlan &self, CudaSum &sum, size_t rank, uint64_t send, uint64_t recv)
{
    if (rank >= sum.n) throw nb::value_error("the group does not have this rank");
    ag_cuda_plan_sum(self.plan, sum.sum, rank, send, recv);
}

void bind_cuda_group(nb::module_ &m)
{
    nb::class_<CudaGroup>(m, "CudaGroup")
        .def(nb::init<nb::sequence, const char *>(), "devices"_a, "path"_a)
        .def("open", &CudaGroup::open)
        .def_prop_ro("broken", [](CudaGroup &g) { return wrap_error(ag_cuda_group_error(g.group)); });
    nb::class_<CudaSum>(m, "CudaSum").def(nb::init<CudaGroup &, size_t, int>(), "group"_a, "count"_a, "type"_a);
}

Plan *plan_finish(CudaPlan &self, size_t scratch)
{
    if (self.plan == nullptr) throw nb::value_error("a plan can be finished once");
    Plan *plan = new Plan(0, 0);
    ag_cuda_plan_attach(plan->plan, std::exchange(self.plan, nullptr), scratch);
    return plan;
}

void bind_cuda_driver(nb::module_ &m)
{
    m.def("cuda_entries", [] {
        nb::list out;
        for (size_t i = 0; i < ag_cu_n_names; ++i) out.append(std::string(ag_cu_names[i]));
        return out;
    });
    m.def(
        "cuda_set_entries",
        [](nb::dict addresses) {
            for (size_t i = 0; i < ag_cu_n_names; ++i) {
                if (addresses.contains(ag_cu_names[i])) ag_cu_set(i, nb::cast<uintptr_t>(addresses[ag_cu_names[i]]));
            }
            return ag_cu_complete();
        },
        "addresses"_a);
    m.def("cuda_hands", [] { return ag_cuda_hands(); });
    m.def(
        "cuda_stop",
        [](double timeout) {
            Unlocked unlocked;
            ag_cuda_stop(static_cast<uint64_t>(timeout * 1e9));
        },
        "timeout"_a);
}

void bind_cuda_module(nb::module_ &m)
{
    nb::class_<CudaModule>(m, "CudaModule")
        .def(
            "__init__",
            [](CudaModule *self, CudaDevice &device, const char *name) {
                new (self) CudaModule(ag_cuda_module_new(device.device, name));
            },
            "device"_a, "name"_a)
        .def_prop_ro("ready", [](CudaModule &module) { return ag_cuda_module_has_image(module.module); })
        .def(
            "set_image",
            [](CudaModule &module, nb::bytes image) {
                if (!ag_cuda_module_set_image(module.module, image.c_str(), image.size())) throw std::bad_alloc();
            },
            "image"_a);
}

/* A device: its memory, its products, its streams. */
void bind_cuda_device(nb::module_ &m)
{
    nb::class_<CudaDevice>(m, "CudaDevice")
        .def(
            "__init__",
            [](CudaDevice *self, int ordinal, const char *name) {
                if (!ag_cu_complete()) raise(exceptions.invalid_state, "[CudaDevice] the driver's entries are not set");
                new (self) CudaDevice(ordinal, name);
            },
            "ordinal"_a, "name"_a)
        .def(
            "alloc", [](CudaDevice &d, size_t size) { return alloc(d, size, false); }, "size"_a)
        .def(
            "alloc_host", [](CudaDevice &d, size_t size) { return alloc(d, size, true); }, "size"_a)
        .def(
            "free", [](CudaDevice &d, uint64_t address) { ag_cuda_free(d.device, address); }, "address"_a)
        .def(
            "free_host",
            [](CudaDevice &d, uintptr_t address) { ag_cuda_host_free(d.device, reinterpret_cast<void *>(address)); },
            "address"_a)
        .def("trim", [](CudaDevice &d) { return d.without_gil(ag_cuda_trim); })
        .def("memory", memory)
        .def(
            "register_host",
            [](CudaDevice &d, uintptr_t address, size_t size, bool read_only) {
                return d.without_gil([&](ag_cuda_device *device) {
                    return ag_cuda_host_register(device, reinterpret_cast<void *>(address), size, read_only);
                });
            },
            "address"_a, "size"_a, "read_only"_a)
        .def(
            "unregister_host",
            [](CudaDevice &d, uintptr_t address) {
                Unlocked unlocked;
                ag_cuda_host_unregister(d.device, reinterpret_cast<void *>(address));
            },
            "address"_a)
        .def(
            "set_blas",
            [](CudaDevice &d, const char *path) {
                if (!ag_cuda_device_set_blas(d.device, path)) throw std::bad_alloc();
            },
            "path"_a)
        .def(
            "set_copier",
            [](CudaDevice &d, nb::bytes image) {
                if (!ag_cuda_device_set_copier(d.device, image.c_str(), image.size())) throw std::bad_alloc();
            },
            "image"_a)
        .def_prop_ro("has_copier", [](CudaDevice &d) { return ag_cuda_device_has_copier(d.device); })
        .def_prop_ro("blas_problem",
                     [](CudaDevice &d) -> nb::object {
                         char text[200];
                         if (!ag_cuda_device_blas_problem(d.device, text, sizeof text)) return nb::none();
                         return nb::str(text);
                     })
        .def_prop_ro("ready", [](CudaDevice &d) { return ag_cuda_device_is_ready(d.device); })
        .def_prop_ro("lost", [](CudaDevice &d) { return wrap_error(ag_cuda_device_lost(d.device)); })
        .def(
            "stream",
            [](nb::object self, const char *name) {
                ag_stream *stream = ag_cuda_stream(nb::cast<CudaDevice &>(self).device, name);
                if (stream == nullptr) throw std::bad_alloc();
                return new Stream(stream, self);
            },
            "name"_a, nb::rv_policy::take_ownership);
}

void bind_cuda_plan(nb::module_ &m)
{
    nb::class_<CudaPlan>(m, "CudaPlan")
        .def(nb::init<CudaDevice &, bool>(), "device"_a, "overlaps"_a)
        .def("node", plan_node, "name"_a, "op"_a, "fault"_a, "partial"_a)
        .def("launch", plan_launch, "module"_a, "kernel"_a, "grid"_a, "block"_a, "shared"_a, "args"_a, "relative"_a,
             "when"_a)
        .def("gemm", plan_gemm, "args"_a, "relative"_a)
        .def(
            "zeroes", [](CudaPlan &p, uint64_t offset, size_t size) { ag_cuda_plan_zeroes(p.plan, offset, size); },
            "offset"_a, "size"_a)
        .def("sum", plan_sum, "sum"_a, "rank"_a, "send"_a, "recv"_a)
        .def("finish", plan_finish, "scratch"_a, nb::rv_policy::take_ownership);
}

} // namespace

void bind_cuda(nb::module_ &m)
{
    bind_cuda_driver(m);
    bind_cuda_module(m);
    bind_cuda_device(m);
    bind_cuda_group(m);
    bind_cuda_plan(m);
}

} // namespace binding
