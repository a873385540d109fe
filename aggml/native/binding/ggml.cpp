// Libraries of ggml: their devices, buffers and plans. Their streams are Stream objects and their plans Plan objects,
// so the other rooms need not tell them apart from those of the CPU. Only this file needs C++ for its own sake: it
// catches exceptions of a library, and those that stand for its assertions.
//
// Not here: which libraries exist, and how they are used (devices/ggml/).
#include "objects.h"

#include <nanobind/stl/vector.h>

extern "C" {
#include "ggml/library.h"
}

#include <cstring>
#include <exception>
#include <stdexcept>

namespace binding
{

namespace
{

struct Assertion : std::runtime_error {
    using std::runtime_error::runtime_error;
};

bool catch_all(ag_ggml_call *call, void *argument, char *message, size_t size)
{
    try {
        call(argument);
        return true;
    } catch (const std::exception &problem) {
        snprintf(message, size, "%s", problem.what());
    } catch (const char *problem) {
        snprintf(message, size, "%s", problem);
    }
    return false;
}

void throw_assertion(const char *message)
{
    throw Assertion(message);
}

struct GgmlDevice {
    ag_ggml_device *device; // as long as the process
};

struct GgmlBuffer {
    ag_ggml_buffer *buffer;
    explicit GgmlBuffer(ag_ggml_buffer *b) : buffer(b)
    {
    }
    GgmlBuffer(const GgmlBuffer &) = delete;
    ~GgmlBuffer()
    {
        ag_ggml_buffer_unref(buffer);
    }
};

struct GgmlLibrary {
    ag_ggml_library *library; // as long as the process
};

template <typename Call> nb::object without_gil(Call call) // None, or the Error
{
    ag_error *error;
    {
        Unlocked unlocked;
        error = call();
    }
    return wrap_error(error);
}

nb::tuple buffer_or_error(ag_error *error, ag_ggml_buffer *buffer)
{
    nb::object out = nb::none();
    if (buffer != nullptr) out = nb::cast(new GgmlBuffer(buffer), nb::rv_policy::take_ownership);
    return nb::make_tuple(out, wrap_error(error));
}

// (library or None, why not)
nb::tuple open_library(const std::string &base, nb::object registry)
{
    char message[512] = "";
    std::string file = registry.is_none() ? std::string() : nb::cast<std::string>(registry);
    ag_ggml_library *library;
    {
        Unlocked unlocked;
        library = ag_ggml_open(base.c_str(), registry.is_none() ? nullptr : file.c_str(), message);
    }
    if (library == nullptr) return nb::make_tuple(nb::none(), std::string(message));
    return nb::make_tuple(nb::cast(new GgmlLibrary{library}, nb::rv_policy::take_ownership), std::string());
}

nb::object load(GgmlLibrary &self, nb::object file) // None, or why not
{
    char message[512] = "";
    std::string path = file.is_none() ? std::string() : nb::cast<std::string>(file);
    bool fine;
    {
        Unlocked unlocked;
        fine = ag_ggml_load(self.library, file.is_none() ? nullptr : path.c_str(), message);
    }
    return fine ? nb::none() : nb::object(nb::str(message));
}

nb::object add_server(GgmlLibrary &self, const std::string &endpoint)
{
    char message[512] = "";
    bool fine;
    {
        Unlocked unlocked;
        fine = ag_ggml_add_server(self.library, endpoint.c_str(), message);
    }
    return fine ? nb::none() : nb::object(nb::str(message));
}

nb::dict facts(GgmlDevice &self)
{
    ag_ggml_facts f = {};
    ag_error_unref(ag_ggml_facts_of(self.device, &f));
    nb::dict out;
    out["name"] = f.name;
    out["description"] = f.description;
    out["family"] = f.family;
    out["id"] = f.id == nullptr ? nb::none() : nb::object(nb::str(f.id));
    out["type"] = f.type;
    out["async_"] = f.async;
    out["host_buffer"] = f.host_buffer;
    out["from_host"] = f.from_host;
    out["events"] = f.events;
    out["ahead"] = f.ahead;
    out["with_igpu"] = f.with_igpu;
    out["host"] = f.host;
    out["remote"] = f.remote;
    out["alignment"] = f.alignment;
    out["max_size"] = f.max_size;
    return out;
}

nb::tuple memory(GgmlDevice &self)
{
    size_t free = 0, total = 0;
    nb::object error = without_gil([&] { return ag_ggml_memory(self.device, &free, &total); });
    return nb::make_tuple(free, total, error);
}

nb::tuple alloc(GgmlDevice &self, size_t size, bool host)
{
    ag_ggml_buffer *buffer = nullptr;
    ag_error *error;
    {
        Unlocked unlocked;
        error = ag_ggml_alloc(self.device, size, host, &buffer);
    }
    return buffer_or_error(error, buffer);
}

nb::list extras(GgmlDevice &self) // (name, alignment, whether it is split) of each
{
    nb::list out;
    for (size_t k = 0; k < ag_ggml_extra_count(self.device); ++k)
        out.append(nb::make_tuple(ag_ggml_extra_name(self.device, k), ag_ggml_extra_alignment(self.device, k),
                                  ag_ggml_extra_is_split(self.device, k)));
    return out;
}

nb::tuple alloc_extra(GgmlDevice &self, size_t size, size_t index)
{
    ag_ggml_buffer *buffer = nullptr;
    ag_error *error;
    if (index >= ag_ggml_extra_count(self.device)) throw nb::index_error("the device has no such format");
    {
        Unlocked unlocked;
        error = ag_ggml_alloc_extra(self.device, size, index, &buffer);
    }
    return buffer_or_error(error, buffer);
}

nb::object declare(GgmlBuffer &self, size_t offset, int type, nb::tuple ne) // None, or the Error
{
    int64_t extents[4];
    four(ne.ptr(), extents);
    return without_gil([&] { return ag_ggml_buffer_declare(self.buffer, offset, type, extents); });
}

nb::tuple extra_size(GgmlDevice &self, size_t index, int type, nb::tuple ne)
{
    int64_t extents[4];
    size_t size = 0;
    four(ne.ptr(), extents);
    if (index >= ag_ggml_extra_count(self.device)) throw nb::index_error("the device has no such format");
    nb::object error = without_gil([&] { return ag_ggml_extra_size(self.device, index, type, extents, &size); });
    return nb::make_tuple(size, error);
}

nb::tuple split(GgmlDevice &self, std::vector<float> shares) // (index of the extra, or None; the Error, or None)
{
    size_t index = 0;
    nb::object error = without_gil([&] { return ag_ggml_split(self.device, shares.data(), shares.size(), &index); });
    bool none = index >= ag_ggml_extra_count(self.device);
    return nb::make_tuple(none ? nb::none() : nb::object(nb::int_(index)), error);
}

nb::tuple wrap(GgmlDevice &self, uintptr_t address, size_t size, size_t largest)
{
    ag_ggml_buffer *buffer = nullptr;
    ag_error *error;
    {
        Unlocked unlocked;
        error = ag_ggml_wrap(self.device, reinterpret_cast<void *>(address), size, largest, &buffer);
    }
    return buffer_or_error(error, buffer);
}

nb::tuple stream(nb::object self, const std::string &name, int n_threads, bool ahead)
{
    ag_error *error = nullptr;
    ag_stream *made;
    {
        GgmlDevice &device = nb::cast<GgmlDevice &>(self);
        Unlocked unlocked;
        made = ag_ggml_stream(device.device, name.c_str(), n_threads, ahead, &error);
    }
    if (made == nullptr && error == nullptr) throw std::bad_alloc();
    nb::object out = nb::none();
    if (made != nullptr) out = nb::cast(new Stream(made, self), nb::rv_policy::take_ownership);
    return nb::make_tuple(out, wrap_error(error));
}

// A plan while it is made; `finish` gives the Plan.
struct GgmlPlan {
    ag_ggml_plan *plan;
    explicit GgmlPlan(GgmlDevice &device) : plan(ag_ggml_plan_new(device.device))
    {
        if (plan == nullptr) throw std::bad_alloc();
    }
    GgmlPlan(const GgmlPlan &) = delete;
    ~GgmlPlan()
    {
        ag_ggml_plan_free(plan);
    }
    int n = 0;
};

int index_of(GgmlPlan &self, nb::handle given) // of a tensor before it, or -1
{
    int index = nb::cast<int>(given);
    if (index < -1 || index >= self.n) throw nb::value_error("an operand must be a node that was added before");
    return index;
}

void add(GgmlPlan &self, int op, int type, nb::tuple ne, nb::tuple nb_, nb::tuple src, int view, int64_t offset,
         nb::tuple place, nb::tuple flags, nb::bytes params, const std::string &name)
{
    ag_ggml_node node = {};
    if (self.plan == nullptr) throw nb::value_error("a plan can be finished once");
    if (agk_op_name(op) == nullptr || agk_traits(type)->name == nullptr) throw nb::value_error("unknown op or type");
    if (nb::len(src) > AG_GGML_SRC) throw nb::value_error("too many operands");
    node.op = op;
    node.type = type;
    four(ne.ptr(), node.ne);
    four(nb_.ptr(), node.nb);
    for (size_t i = 0; i < AG_GGML_SRC; ++i) node.src[i] = i < nb::len(src) ? index_of(self, src[i]) : -1;
    node.view = index_of(self, nb::int_(view));
    node.offset = offset;
    node.address = nb::cast<uintptr_t>(place[0]);
    node.in_arena = nb::cast<bool>(place[1]);
    node.keep = nb::cast<bool>(flags[0]);
    node.param = nb::cast<bool>(flags[1]);
    memcpy(node.params, params.c_str(), std::min(params.size(), sizeof node.params));
    snprintf(node.name, sizeof node.name, "%s", name.c_str());
    if (!ag_ggml_plan_add(self.plan, &node)) throw std::bad_alloc();
    ++self.n;
}

void check_filled(GgmlPlan &self)
{
    if (self.plan == nullptr || self.n == 0) throw nb::value_error("there is no node to ask about");
}

Plan *finish(GgmlPlan &self, size_t arena)
{
    if (self.plan == nullptr) throw nb::value_error("a plan can be finished once");
    Plan *plan = new Plan(0, arena);
    ag_ggml_plan_attach(plan->plan, std::exchange(self.plan, nullptr));
    return plan;
}

void bind_buffer(nb::module_ &m)
{
    nb::class_<GgmlBuffer>(m, "GgmlBuffer")
        .def("declare", declare, "offset"_a, "type"_a, "ne"_a)
        .def_prop_ro("base", [](GgmlBuffer &b) { return ag_ggml_buffer_base(b.buffer); })
        .def_prop_ro("size", [](GgmlBuffer &b) { return ag_ggml_buffer_size(b.buffer); })
        .def_prop_ro("host", [](GgmlBuffer &b) { return ag_ggml_buffer_is_host(b.buffer); });
}

void bind_device(nb::module_ &m)
{
    nb::class_<GgmlDevice>(m, "GgmlDevice")
        .def_prop_ro("key", [](GgmlDevice &d) { return reinterpret_cast<uintptr_t>(d.device); })
        .def_prop_ro("facts", facts)
        .def_prop_ro("lost", [](GgmlDevice &d) { return wrap_error(ag_ggml_lost(d.device)); })
        .def("memory", memory)
        .def("alloc", alloc, "size"_a, "host"_a = false)
        .def_prop_ro("extras", extras)
        .def("alloc_extra", alloc_extra, "size"_a, "index"_a)
        .def("wrap", wrap, "address"_a, "size"_a, "largest"_a)
        .def("extra_size", extra_size, "index"_a, "type"_a, "ne"_a)
        .def("split", split, "shares"_a)
        .def_prop_ro("followed", [](GgmlDevice &d) { return ag_ggml_follow_count(d.device); })
        .def("stream", stream, "name"_a, "n_threads"_a = 0, "ahead"_a = true);
}

void bind_ggml_plan(nb::module_ &m)
{
    nb::class_<GgmlPlan>(m, "GgmlPlan")
        .def(nb::init<GgmlDevice &>(), "device"_a)
        .def("add", add, "op"_a, "type"_a, "ne"_a, "nb"_a, "src"_a, "view"_a, "offset"_a, "place"_a, "flags"_a,
             "params"_a, "name"_a)
        .def("supports",
             [](GgmlPlan &p) {
                 char why[512];
                 check_filled(p);
                 bool yes = ag_ggml_plan_supports(p.plan, why);
                 return nb::make_tuple(yes, std::string(why));
             })
        .def("offloads",
             [](GgmlPlan &p) {
                 check_filled(p);
                 return ag_ggml_plan_offloads(p.plan);
             })
        .def("alloc_size",
             [](GgmlPlan &p) {
                 check_filled(p);
                 return ag_ggml_plan_alloc_size(p.plan);
             })
        .def("finish", finish, "arena"_a, nb::rv_policy::take_ownership);
}

} // namespace

void bind_ggml(nb::module_ &m)
{
    ag_ggml_catch = catch_all;
    ag_ggml_throw = throw_assertion;
    m.def("ggml_open", open_library, "base"_a, "registry"_a.none());
    m.def(
        "ggml_stop",
        [](double timeout) {
            Unlocked unlocked;
            ag_ggml_stop(static_cast<uint64_t>(timeout * 1e9));
        },
        "timeout"_a);
    bind_buffer(m);
    bind_device(m);
    bind_ggml_plan(m);
    nb::class_<GgmlLibrary>(m, "GgmlLibrary")
        .def_prop_ro("version", [](GgmlLibrary &l) { return std::string(ag_ggml_version(l.library)); })
        .def_prop_ro("commit", [](GgmlLibrary &l) { return std::string(ag_ggml_commit(l.library)); })
        .def(
            "has", [](GgmlLibrary &l, const std::string &name) { return ag_ggml_has(l.library, name.c_str()); },
            "function"_a)
        .def(
            "type", [](GgmlLibrary &l, int type) { return ag_ggml_type(l.library, type); }, "type"_a)
        .def("load", load, "file"_a.none())
        .def("add_server", add_server, "endpoint"_a)
        .def("families",
             [](GgmlLibrary &l) {
                 nb::list out;
                 for (size_t i = 0; i < ag_ggml_family_count(l.library); ++i)
                     out.append(std::string(ag_ggml_family(l.library, i)));
                 return out;
             })
        .def("devices", [](GgmlLibrary &l) {
            nb::list out;
            for (size_t i = 0; i < ag_ggml_device_count(l.library); ++i)
                out.append(nb::cast(new GgmlDevice{ag_ggml_device_get(l.library, i)}, nb::rv_policy::take_ownership));
            return out;
        });
}

} // namespace binding
