// Scripts: submissions over several streams that are repeated with other arrays and are otherwise the same.
//
// The operations are kept as Python described them the first time. A run copies the descriptions, fills in the arrays
// and enqueues all of them in one step. Not here: what is worth keeping (scheduler/running/prepared.py).
#include "lineup.h"

#include <algorithm>
#include <cstring>

namespace binding
{

namespace
{

struct alignas(ag_slot) SlotBytes { // a slot that is not queued yet is plain bytes
    unsigned char bytes[sizeof(ag_slot)];
    ag_slot &slot()
    {
        return *reinterpret_cast<ag_slot *>(bytes);
    }
};

struct Entry {
    SlotBytes slot;
    nb::object keep; // what a queued copy of it keeps alive
    nb::object span; // of a transfer: its array comes with each run
    bool to_array;
};

struct Group {
    nb::object owner; // the Stream
    std::vector<Entry> entries;
};

struct Script {
    std::vector<Group> groups;
    std::vector<Py_ssize_t> arrays; // of each transfer: which of those that a run brings
    size_t n = 0;
    Py_ssize_t n_arrays = 0; // that a run brings, at least
    Script(nb::sequence given, nb::sequence which);
    Script(const Script &) = delete;
    ~Script()
    {
        for (Group &group : groups) {
            for (Entry &entry : group.entries) ag_slot_drop(&entry.slot.slot());
        }
    }
};

Script::Script(nb::sequence given, nb::sequence which)
{
    for (nb::handle i : which) {
        arrays.push_back(nb::cast<Py_ssize_t>(i));
        if (arrays.back() < 0) throw nb::value_error("a transfer needs the number of its array, 0 or more");
        n_arrays = std::max(n_arrays, arrays.back() + 1);
    }
    size_t transfers = 0;
    for (nb::handle pair : given) {
        groups.emplace_back();
        Group &group = groups.back();
        group.owner = nb::borrow(pair[0]);
        nb::cast<Stream &>(group.owner);
        nb::list descs = nb::cast<nb::list>(pair[1]);
        group.entries.reserve(nb::len(descs));
        for (nb::handle h : descs) {
            Desc &d = nb::cast<Desc &>(h);
            if (d.used) throw nb::value_error("an operation that was submitted cannot be recorded");
            if (d.slot.kind == AG_KIND_CALL) throw nb::value_error("a call of Python cannot be recorded");
            group.entries.emplace_back();
            Entry &entry = group.entries.back();
            memset(entry.slot.bytes, 0, sizeof entry.slot.bytes);
            entry.to_array = d.to_array;
            if (d.span.is_valid()) {
                ag_slot &slot = entry.slot.slot();
                slot.kind = d.slot.kind;
                slot.operation = d.slot.operation;
                slot.pace = d.slot.pace;
                entry.span = d.span;
                ++transfers;
            } else {
                if (!ag_slot_copy(&entry.slot.slot(), &d.slot)) throw std::bad_alloc();
                if (d.keep != nullptr) entry.keep = nb::borrow(d.keep);
            }
            ++n;
        }
    }
    if (transfers != arrays.size()) throw nb::value_error("a script needs an array for each of its transfers");
}

// What is built is dropped again unless it gets queued.
struct Built {
    std::vector<SlotBytes> slots;
    size_t n = 0;
    bool queued = false;
    explicit Built(size_t count) : slots(count)
    {
    }
    ~Built()
    {
        for (size_t i = 0; !queued && i < n; ++i) ag_slot_drop(&slots[i].slot());
    }
    ag_slot &next()
    {
        ag_slot &slot = slots[n++].slot();
        memset(static_cast<void *>(&slot), 0, sizeof slot);
        return slot;
    }
};

// A copy of the operations of a script over the arrays of one run, in batches behind room for some waits.
struct Copies {
    Built built;
    std::vector<nb::object> kept;
    std::vector<ag_block *> blocks;
    std::vector<uint64_t> tickets;
    std::vector<ag_batch> batches;
    size_t n_before, n_ops = 0;

    Copies(Script &script, const Ahead &ahead, nb::list arrays);
    void batch(ag_stream *stream, size_t at)
    {
        batches.push_back(ag_batch{stream, &built.slots[at].slot(), built.n - at, &blocks[at], &tickets[at]});
    }
};

Copies::Copies(Script &script, const Ahead &ahead, nb::list arrays)
    : built(ahead.waits.size() + script.n), kept(built.slots.size()), blocks(kept.size()), tickets(kept.size()),
      n_before(ahead.waits.size())
{
    batches.reserve(n_before + script.groups.size());
    for (const Wait &wait : ahead.waits) {
        ag_slot &slot = built.next();
        slot.kind = AG_KIND_WAIT;
        slot.operation = "wait";
        slot.u.wait.ticket = wait.ticket;
        slot.u.wait.stream = ag_stream_ref(wait.other);
        batch(wait.stream, built.n - 1);
    }
    size_t next_array = 0;
    for (Group &group : script.groups) {
        size_t at = built.n;
        for (Entry &entry : group.entries) {
            ag_slot &slot = built.next();
            if (entry.span.is_valid()) {
                slot.kind = entry.slot.slot().kind;
                slot.operation = entry.slot.slot().operation;
                slot.pace = entry.slot.slot().pace;
                kept[built.n - 1] = array_copy(slot, entry.to_array, arrays[script.arrays[next_array++]],
                                               nb::cast<const Span &>(entry.span));
            } else {
                if (!ag_slot_copy(&slot, &entry.slot.slot())) throw std::bad_alloc();
                kept[built.n - 1] = entry.keep;
            }
            n_ops += slot.kind != AG_KIND_WAIT;
        }
        batch(nb::cast<Stream &>(group.owner).stream, at);
    }
}

void release_prefixes(Script &script)
{
    for (Group &group : script.groups) {
        Stream &stream = nb::cast<Stream &>(group.owner);
        stream.keeper->release();
    }
}

// The operations but for the waits.
nb::tuple made_ops(Script &script, Copies &copies)
{
    nb::object ops = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(copies.n_ops)));
    Py_ssize_t op = 0;
    size_t i = copies.n_before;
    for (Group &group : script.groups) {
        Stream &stream = nb::cast<Stream &>(group.owner);
        for (Entry &entry : group.entries) {
            ag_block *block = copies.blocks[i];
            uint64_t ticket = copies.tickets[i];
            if (copies.kept[i].is_valid()) stream.keeper->keep(ticket, copies.kept[i].release().ptr());
            if (entry.slot.slot().kind == AG_KIND_WAIT) {
                ag_block_unref(block);
            } else {
                auto *made = new Op(stream.stream, block, ticket, group.owner);
                PyTuple_SET_ITEM(ops.ptr(), op++, nb::cast(made, nb::rv_policy::take_ownership).release().ptr());
            }
            ++i;
        }
    }
    return nb::cast<nb::tuple>(ops);
}

// Enqueue a script in one step, after what its line has to wait for. arrays: those that its transfers are from or to.
// Returns the operations but for the waits.
nb::tuple submit_script(Script &script, Lineup &line, Use &use, nb::list arrays)
{
    if (static_cast<Py_ssize_t>(nb::len(arrays)) < script.n_arrays)
        throw nb::value_error("a script needs an array for each of its transfers");
    release_prefixes(script);
    for (;;) {
        Ahead ahead;
        {
            nb::ft_lock_guard guard(line.lock);
            line.before(use, false, ahead);
        }
        Copies copies(script, ahead, arrays);
        ag_submit_status status;
        {
            nb::ft_lock_guard guard(line.lock); // nobody sees the tails of this submission before it is noted
            status = ag_submit_if(copies.batches.data(), copies.batches.size(), ahead.tails.data(), ahead.tails.size());
            if (status == AG_SUBMIT_OK) line.note(use, ahead.tails, copies.batches);
        }
        if (status == AG_SUBMIT_MOVED) continue; // pinning an array may run Python, and another thread with it
        if (status != AG_SUBMIT_OK) raise_submit(status, ag_stream_name(copies.batches[0].stream));
        copies.built.queued = true;
        for (size_t i = 0; i < copies.n_before; ++i) ag_block_unref(copies.blocks[i]);
        nb::tuple ops = made_ops(script, copies);
        release_prefixes(script); // what was small has been done here already: let go of it at once
        return ops;
    }
}

} // namespace

void bind_script(nb::module_ &m)
{
    nb::class_<Script>(m, "Script").def(nb::init<nb::sequence, nb::sequence>(), "groups"_a, "arrays"_a);
    m.def("submit_script", submit_script, "script"_a, "lineup"_a, "use"_a, "arrays"_a);
}

} // namespace binding
