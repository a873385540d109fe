// The interpreter: threads that take back the GIL, the exit of the process, the classes of exceptions.
#include "objects.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <thread>

namespace binding
{

Exceptions exceptions;

static std::atomic<bool> ended{false};           // set at exit, by the thread that ends the interpreter
static std::atomic<int> taking_back{0};          // threads between their native work and the GIL
static std::atomic<std::thread::id> last_thread; // the one that ends the interpreter

Unlocked::~Unlocked()
{
    taking_back.fetch_add(1);
    if (ended.load() && std::this_thread::get_id() != last_thread.load()) {
        taking_back.fetch_sub(1);
        for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
    PyEval_RestoreThread(state);
    taking_back.fetch_sub(1);
}

bool finished()
{
    return ended.load();
}

[[noreturn]] void raise(nb::handle type, const std::string &message)
{
    PyErr_SetObject(type.is_valid() ? type.ptr() : PyExc_RuntimeError, text_of(message.c_str()).ptr());
    throw nb::python_error();
}

nb::str text_of(const char *text)
{
    nb::object out = nb::steal(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(strlen(text)), "ignore"));
    if (!out.is_valid()) throw nb::python_error();
    return nb::borrow<nb::str>(out);
}

void shutdown()
{
    last_thread.store(std::this_thread::get_id());
    ended.store(true);
    ag_on_idle = nullptr;
    Unlocked unlocked;
    ag_timer_stop();
    // Threads that did not see the flag get the GIL now. This takes at most a second, even if one of them is stuck.
    for (int i = 0; i < 1000 && taking_back.load() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void interpreter_forked()
{
    taking_back.store(0); // those threads are the parent's
}

static nb::list cpu_report()
{
    agk_cpu_fact facts[64];
    size_t n = std::min(agk_cpu_report(facts, std::size(facts)), std::size(facts));
    nb::list out;
    for (size_t i = 0; i < n; ++i)
        out.append(nb::make_tuple(std::string(facts[i].name), facts[i].usable, facts[i].base != 0));
    return out;
}

void bind_interpreter(nb::module_ &m)
{
    m.def(
        "set_exceptions",
        [](nb::object invalid_state, nb::object alloc_failed, nb::object invalid_argument, nb::object unsupported) {
            exceptions = {invalid_state.release(), alloc_failed.release(), invalid_argument.release(),
                          unsupported.release()};
        },
        "invalid_state"_a, "alloc_failed"_a, "invalid_argument"_a, "unsupported"_a);
    m.def("end_streams", ag_streams_end);
    m.def("stop_pools", [] {
        Unlocked unlocked;
        ag_pools_stop();
    });
    m.def("shutdown", shutdown);
    m.def("usable_cpus", ag_usable_cpus);
    m.def("sched_loop", ag_sched_loop);
    m.def("timers_compared", ag_timer_compared);
    m.def("banks", ag_banks);
    m.def("pretend_cores", ag_topology_pretend, "cores"_a, "banks"_a);
    m.def("core_kinds", [] {
        const ag_core_kinds kinds = ag_cores();
        return nb::make_tuple(kinds.performance, kinds.efficiency);
    });
    m.def(
        "pretend_files", // "": the real machine again
        [](const std::string &root) { ag_cores_pretend(root.empty() ? nullptr : root.c_str()); }, "root"_a);
    m.def(
        "place", [](uintptr_t data, size_t size) { return ag_place(reinterpret_cast<void *>(data), size); }, "data"_a,
        "size"_a);
    m.def("cpu_features", agk_cpu_features);
    m.def("cpu_report", cpu_report);
    m.def("now", [] { return static_cast<double>(ag_now()) * 1e-9; });
    m.attr("commit") = AGGML_COMMIT;
    m.def("generation", [] { return static_cast<unsigned>(ag_generation.load()); });
}

} // namespace binding
