// Streams and the operations queued on them: submission, waiting, failures.
#include "lineup.h"

#include <poll.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace binding
{

[[noreturn]] void raise_submit(ag_submit_status status, const char *name)
{
    std::string who = std::string("[submit] stream '") + name + "' ";
    switch (status) {
    case AG_SUBMIT_CLOSED: raise(exceptions.invalid_state, who + "is closed");
    case AG_SUBMIT_FORKED:
        raise(exceptions.invalid_state, who + "belongs to the parent process: open a new backend after fork");
    case AG_SUBMIT_LOST: raise(exceptions.invalid_state, who + "is on a device that was lost");
    default: raise(exceptions.alloc_failed, who + "has no memory for another operation");
    }
}

bool Op::settle()
{
    if (block == nullptr) return true;
    if (!done()) return false;
    const ag_slot &s = slot();
    end = {s.submitted, s.started.load(), s.done.load(), s.moved, ag_error_ref(s.error.load()), s.operation, s.derived};
    ag_block_unref(std::exchange(block, nullptr));
    return true;
}

namespace
{

struct alignas(ag_slot) SlotBytes { // std::atomic forbids copies; a slot that is not queued yet is plain bytes
    unsigned char bytes[sizeof(ag_slot)];
};

// groups: [(Stream, [Desc, ...]), ...], enqueued as one step on all streams -> one list of Ops per group. With `line`:
// only if nobody was faster than what `ahead` says, else none of it is, and the result is None.
nb::object submit_groups(nb::sequence groups, Lineup *line, const Use *use, const Ahead *ahead)
{
    size_t n = nb::len(groups);
    std::vector<ag_batch> batches(n);
    std::vector<std::vector<SlotBytes>> slots(n);
    std::vector<std::vector<ag_block *>> blocks(n);
    std::vector<std::vector<uint64_t>> tickets(n);
    std::vector<std::vector<Desc *>> descs(n);
    std::vector<nb::object> owners(n);
    for (size_t i = 0; i < n; ++i) {
        nb::object group = groups[i];
        owners[i] = group[0];
        Stream &stream = nb::cast<Stream &>(owners[i]);
        stream.keeper->release();
        nb::object list = group[1];
        for (nb::handle h : list) {
            Desc *d = &nb::cast<Desc &>(h);
            if (d->used) throw nb::value_error("an operation can be submitted once");
            descs[i].push_back(d);
            slots[i].emplace_back();
            memcpy(static_cast<void *>(&slots[i].back()), &d->slot, sizeof d->slot);
        }
        blocks[i].resize(slots[i].size());
        tickets[i].resize(slots[i].size());
        batches[i] = ag_batch{stream.stream, reinterpret_cast<ag_slot *>(slots[i].data()), slots[i].size(),
                              blocks[i].data(), tickets[i].data()};
    }
    const std::vector<ag_seen> none, &tails = line == nullptr ? none : ahead->tails;
    ag_submit_status status;
    {
        nb::ft_mutex no_line;
        nb::ft_lock_guard guard(line == nullptr ? no_line : line->lock); // nobody sees its tails before it is noted
        status = ag_submit_if(batches.data(), n, tails.data(), tails.size());
        if (line != nullptr && status == AG_SUBMIT_OK) line->note(*use, tails, batches);
    }
    if (status == AG_SUBMIT_MOVED) return nb::none();
    if (status != AG_SUBMIT_OK) raise_submit(status, n ? ag_stream_name(batches[0].stream) : "");
    nb::list out;
    for (size_t i = 0; i < n; ++i) {
        Stream &stream = nb::cast<Stream &>(owners[i]);
        nb::list ops;
        for (size_t k = 0; k < descs[i].size(); ++k) {
            Desc *d = descs[i][k];
            d->used = true;
            if (d->keep != nullptr) stream.keeper->keep(tickets[i][k], std::exchange(d->keep, nullptr));
            ops.append(
                nb::cast(new Op(stream.stream, blocks[i][k], tickets[i][k], owners[i]), nb::rv_policy::take_ownership));
        }
        out.append(ops);
    }
    for (nb::object &owner : owners) { // what was small has been done here already: let go of it at once
        Stream &stream = nb::cast<Stream &>(owner);
        stream.keeper->release();
    }
    return out;
}

nb::object submit(nb::sequence groups)
{
    return submit_groups(groups, nullptr, nullptr, nullptr);
}

// One operation of one stream.
nb::tuple submit_one(nb::object owner, Desc &desc)
{
    Stream &stream = nb::cast<Stream &>(owner);
    if (desc.used) throw nb::value_error("an operation can be submitted once");
    stream.keeper->release();
    SlotBytes slot;
    memcpy(static_cast<void *>(&slot), &desc.slot, sizeof desc.slot);
    ag_block *block;
    uint64_t ticket;
    ag_batch batch = {stream.stream, reinterpret_cast<ag_slot *>(&slot), 1, &block, &ticket};
    ag_submit_status status = ag_submit(&batch, 1);
    if (status != AG_SUBMIT_OK) raise_submit(status, ag_stream_name(stream.stream));
    desc.used = true;
    nb::object op = nb::cast(new Op(stream.stream, block, ticket, owner), nb::rv_policy::take_ownership);
    PyObject *keep = std::exchange(desc.keep, nullptr);
    if (keep != nullptr) {
        stream.keeper->keep(ticket, keep);
        stream.keeper->release(); // what was small has been done here already: let go of it at once
    }
    return nb::steal<nb::tuple>(PyTuple_Pack(1, op.ptr()));
}

nb::object op_error(Op &op)
{
    return op.settle() ? wrap_error(ag_error_ref(op.end.error)) : nb::none();
}

// The first of some operations that failed; all of them are done. None: all went well.
nb::object first_failed(nb::tuple ops)
{
    for (nb::handle h : ops) {
        Op &op = nb::cast<Op &>(h);
        nb::ft_object_guard guard(h);
        if (op.settle() && op.end.error != nullptr) return nb::borrow(h);
    }
    return nb::none();
}

nb::object seconds_or_none(uint64_t ns)
{
    return ns == 0 ? nb::none() : nb::cast(static_cast<double>(ns) * 1e-9);
}

nb::tuple op_times(Op &op)
{
    if (op.settle())
        return nb::make_tuple(static_cast<double>(op.end.submitted) * 1e-9, seconds_or_none(op.end.started),
                              seconds_or_none(op.end.done));
    ag_slot &slot = op.slot();
    return nb::make_tuple(static_cast<double>(slot.submitted) * 1e-9, seconds_or_none(slot.started.load()), nb::none());
}

// Blocks without the GIL until the ticket is done. Signals are served. Making a notifier costs little compared with a
// sleep.
bool op_wait(Op &op, double timeout)
{
    uint64_t begin = ag_now(), spin_until = begin + 20000;
    {
        Unlocked unlocked;
        while (!op.done() && ag_now() < spin_until) continue;
    }
    if (op.done()) return true;
    if (!ag_stream_alive(op.stream))
        raise(exceptions.invalid_state, "[Future.wait] the operation belongs to the parent process");
    Notifier notifier;
    struct Armed { // leaves the stream's heap whichever way this function ends
        ag_wait wait = {};
        ~Armed()
        {
            ag_wait_cancel(&wait);
        }
    } armed;
    for (;;) {
        double left = timeout < 0 ? -1 : timeout - static_cast<double>(ag_now() - begin) * 1e-9;
        if (op.done()) return true;
        if (timeout >= 0 && left <= 0) break;
        if (armed.wait.stream == nullptr && !ag_wait_arm(&armed.wait, op.stream, notifier.notifier, op.ticket))
            return true;
        int rc, error;
        {
            Unlocked unlocked;
            struct pollfd fd = {ag_notifier_fd(notifier.notifier), POLLIN, 0};
            rc = poll(&fd, 1, timeout < 0 ? -1 : static_cast<int>(left < 2e6 ? left * 1e3 + 1 : 2e9));
            error = errno;
        }
        if (rc < 0 && error == EINTR && PyErr_CheckSignals() != 0) throw nb::python_error();
        ag_notifier_drain(notifier.notifier);
        (void)ag_notifier_take(notifier.notifier);
    }
    return op.done();
}

nb::object next_call(Stream &self, double timeout)
{
    uint64_t ticket;
    bool got;
    {
        Unlocked unlocked;
        got = ag_stream_next_call(self.stream, static_cast<uint64_t>(timeout * 1e9), &ticket);
    }
    return got ? nb::cast(ticket) : nb::none();
}

// What the call that was taken is: (step of a plan, or None, what was given along to be kept).
nb::tuple call_step(Stream &self)
{
    size_t step;
    void *user = nullptr;
    bool of_plan = ag_stream_call_step(self.stream, &step, &user);
    return nb::make_tuple(of_plan ? nb::cast(step) : nb::none(),
                          user == nullptr ? nb::none() : nb::borrow(static_cast<PyObject *>(user)));
}

void finish_call(Stream &self, nb::object error)
{
    ag_stream_finish_call(self.stream, error.is_none() ? nullptr : ag_error_ref(nb::cast<Error &>(error).error));
}

// Whether one of `ops` can only be done after this stream has gone on. blocked: (stream, operations that the function
// which it runs waits for).
bool needs(Stream &self, nb::sequence ops, nb::sequence blocked)
{
    std::vector<ag_edge> starts, edges;
    auto add = [](std::vector<ag_edge> &to, ag_stream *stream, nb::sequence given) {
        for (nb::handle h : given) {
            Op &op = nb::cast<Op &>(h);
            to.push_back(ag_edge{stream, op.stream, op.ticket});
        }
    };
    add(starts, nullptr, ops);
    for (nb::handle pair : blocked) {
        nb::object stream = pair[0], waits = pair[1];
        add(edges, nb::cast<Stream &>(stream).stream, nb::cast<nb::sequence>(waits));
    }
    return ag_stream_needs(starts.data(), starts.size(), edges.data(), edges.size(), self.stream);
}

} // namespace

// None: what was found out ahead does not hold any more.
static nb::object submit_in_line(nb::sequence groups, Lineup &line, const Use &use, Ahead &ahead)
{
    return submit_groups(groups, &line, &use, &ahead);
}

void bind_stream(nb::module_ &m)
{
    m.def("set_unseen", set_unseen, "tell"_a);
    m.def("take_unseen", take_unseen);
    m.def("streams_seen", streams_seen);
    m.def("submit", submit, "groups"_a);
    m.def("submit_in_line", submit_in_line, "groups"_a, "lineup"_a, "use"_a, "ahead"_a);
    m.def("submit_one", submit_one, "stream"_a, "desc"_a);
    m.def("first_failed", first_failed, "ops"_a);
    nb::class_<Op>(m, "Op")
        .def("done", &Op::settle, nb::lock_self())
        .def_ro("ticket", &Op::ticket)
        .def_ro("stream", &Op::owner)
        .def_ro("lasts", &Op::lasts)
        .def("error", op_error, nb::lock_self())
        .def_prop_ro(
            "derived", [](Op &op) { return op.settle() && op.end.derived; }, nb::lock_self())
        .def_prop_ro(
            "operation", [](Op &op) { return text_of(op.settle() ? op.end.operation : op.slot().operation); },
            nb::lock_self())
        .def("times", op_times, nb::lock_self())
        .def_prop_ro(
            "moved", [](Op &op) { return op.settle() ? op.end.moved : 0; }, nb::lock_self())
        .def(
            "abort",
            [](Op &op) {
                if (!op.settle()) ag_stream_abort(op.stream, op.block, op.ticket);
            },
            nb::lock_self())
        .def("wait", op_wait, "timeout"_a);

    nb::class_<Stream>(m, "Stream")
        .def(
            "__init__",
            [](Stream *self, const char *name, nb::object pool, int n_threads) {
                ag_stream *stream = ag_stream_new(name, nb::cast<Pool &>(pool).pool, n_threads);
                if (stream == nullptr) throw std::bad_alloc();
                new (self) Stream(stream, pool);
            },
            "name"_a, "pool"_a, "n_threads"_a)
        .def_prop_ro("name", [](Stream &s) { return text_of(ag_stream_name(s.stream)); })
        .def_prop_ro("key", [](Stream &s) { return reinterpret_cast<uintptr_t>(s.stream); })
        .def_prop_ro("submitted", [](Stream &s) { return ag_stream_submitted(s.stream); })
        .def_prop_ro("completed", [](Stream &s) { return ag_stream_completed(s.stream); })
        .def_prop_ro("alive", [](Stream &s) { return ag_stream_alive(s.stream); })
        .def_prop_ro("closed", [](Stream &s) { return ag_stream_closed(s.stream); })
        .def_prop_rw(
            "n_threads", [](Stream &s) { return ag_stream_n_threads(s.stream); },
            [](Stream &s, int n) { ag_stream_set_n_threads(s.stream, n); })
        .def_prop_ro("kept", [](Stream &s) { return s.keeper->n_kept(); })
        .def_prop_ro("lost", [](Stream &s) { return wrap_error(ag_error_ref(ag_stream_lost(s.stream))); })
        .def("release_finished", [](Stream &s) { s.keeper->release(); })
        .def("hold", [](Stream &s) { ag_stream_hold(s.stream); })
        .def("release", [](Stream &s) { return ag_stream_release(s.stream); })
        .def("close", [](Stream &s) { ag_stream_close(s.stream); })
        .def(
            "lose", [](Stream &s, Error &error) { ag_stream_lose(s.stream, error.error); }, "error"_a)
        .def("abort_all", [](Stream &s) { ag_stream_abort_all(s.stream); })
        .def_prop_ro("compared", [](Stream &s) { return ag_stream_compared(s.stream); })
        .def("take_failures", [](Stream &s) { return take_failures(s.stream); })
        .def("next_call", next_call, "timeout"_a)
        .def("call_step", call_step)
        .def("needs", needs, "ops"_a, "blocked"_a)
        .def("finish_call", finish_call, "error"_a.none());
}

} // namespace binding
