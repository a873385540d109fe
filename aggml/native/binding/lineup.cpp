// Lineup: the earlier submissions that a submission over several streams has to wait for.
//
// One stream joins all others at the end of each submission, so its tickets tell which are done. Not here: the
// operations of a submission (script.cpp), what it touches (scheduler/running/run.py).
#include "lineup.h"

#include <algorithm>

namespace binding
{

namespace
{

Streams streams_of(nb::sequence given)
{
    Streams out;
    for (nb::handle h : given) {
        nb::cast<Stream &>(h);
        out.push_back(nb::borrow(h));
    }
    return out;
}

ag_stream *raw(const nb::object &owner)
{
    return nb::cast<Stream &>(owner).stream;
}

} // namespace

Use::Use(int slot_, nb::sequence streams_, nb::sequence touched_, nb::sequence written_)
    : slot(slot_), streams(streams_of(streams_))
{
    for (nb::handle pair : touched_) {
        nb::object streams_there = pair[1];
        touched.emplace_back(nb::cast<size_t>(pair[0]), streams_of(nb::cast<nb::sequence>(streams_there)));
    }
    for (nb::handle home : written_) written.push_back(nb::cast<size_t>(home));
}

Lineup::Lineup(nb::object joined_, nb::sequence homes_, size_t n_slots)
    : joined(std::move(joined_)), homes(streams_of(homes_)), own(homes.size()), user(homes.size()),
      written(homes.size()), touched(homes.size()), slots(n_slots)
{
    nb::cast<Stream &>(joined);
}

bool Lineup::busy() const
{
    return ag_stream_submitted(raw(joined)) > ag_stream_completed(raw(joined));
}

int Lineup::free_slot() const
{
    nb::ft_lock_guard guard(lock);
    uint64_t done = ag_stream_completed(raw(joined));
    size_t best = 0;
    for (size_t i = 0; i < slots.size(); ++i) {
        if (slots[i] <= done) return static_cast<int>(i);
        if (slots[i] < slots[best]) best = i;
    }
    return static_cast<int>(best);
}

Row &Lineup::row(const nb::object &owner)
{
    for (Row &known : rows) {
        if (known.owner.is(owner)) return known;
    }
    rows.push_back({owner, std::vector<uint64_t>(homes.size())});
    return rows.back();
}

// The last ticket of a home that is not a submission's.
uint64_t Lineup::user_at(size_t home, uint64_t tail) const
{
    return tail != own[home] ? tail : user[home];
}

void Lineup::before(const Use &use, bool done_too, Ahead &out)
{
    auto matters = [done_too](ag_stream *other, uint64_t ticket) {
        return ticket > (done_too ? 0 : ag_stream_completed(other));
    };
    out.waits.clear();
    out.tails.clear();
    for (const nb::object &home : homes) out.tails.push_back({raw(home), ag_stream_submitted(raw(home))});
    ag_stream *last = raw(joined);
    // Shared memory is free after the last of all submissions; a slot is free after its own last user and all
    // submissions that use the shared memory.
    uint64_t end = use.slot < 0 ? ag_stream_submitted(last) : std::max(exclusive, slots.at(use_slot(use)));
    bool after = matters(last, end);
    for (const nb::object &owner : use.streams) {
        ag_stream *stream = raw(owner);
        if (after && stream != last) out.waits.push_back({stream, last, end});
        const Row &seen = row(owner);
        for (size_t i = 0; i < homes.size(); ++i) { // what others enqueued there that this stream has not waited for
            const ag_seen &tail = out.tails[i];
            uint64_t ticket = user_at(i, tail.ticket);
            if (tail.stream == stream || ticket <= seen.user[i] || !matters(tail.stream, ticket)) continue;
            out.waits.push_back({stream, tail.stream, ticket});
        }
    }
    for (const auto &[home, streams] : use.touched) {
        bool writes = std::find(use.written.begin(), use.written.end(), home) != use.written.end();
        ag_stream *other = raw(homes.at(home));
        uint64_t ticket = writes ? touched[home] : written[home];
        if (!matters(other, ticket)) continue;
        for (const nb::object &owner : streams) {
            if (raw(owner) != other) out.waits.push_back({raw(owner), other, ticket});
        }
    }
}

void Lineup::note(const Use &use, const std::vector<ag_seen> &tails, const std::vector<ag_batch> &batches)
{
    uint64_t end = ag_stream_submitted(raw(joined));
    if (use.slot < 0) {
        exclusive = end;
    } else {
        slots.at(use_slot(use)) = end;
    }
    for (size_t i = 0; i < homes.size(); ++i) {
        user[i] = user_at(i, tails[i].ticket);
        own[i] = tails[i].ticket;
        for (const ag_batch &batch : batches) {
            if (batch.stream == tails[i].stream && batch.n > 0) own[i] = std::max(own[i], batch.tickets[batch.n - 1]);
        }
    }
    for (const nb::object &owner : use.streams) row(owner).user = user;
    for (const auto &[home, streams] : use.touched) touched.at(home) = own[home];
    for (size_t home : use.written) touched.at(home) = written.at(home) = own[home];
}

// [(the stream that waits, for which, ticket)]
static nb::list waits_of(const Ahead &ahead, const Lineup &line, const Use &use)
{
    auto owner_of = [&](ag_stream *stream) -> nb::object {
        if (stream == raw(line.joined)) return line.joined;
        for (const Streams *streams : {&line.homes, &use.streams}) {
            for (const nb::object &owner : *streams) {
                if (raw(owner) == stream) return owner;
            }
        }
        for (const auto &[home, streams] : use.touched) {
            for (const nb::object &owner : streams) {
                if (raw(owner) == stream) return owner;
            }
        }
        return nb::none(); // it is one of these
    };
    nb::list out;
    for (const Wait &wait : ahead.waits) {
        out.append(nb::make_tuple(owner_of(wait.stream), owner_of(wait.other), wait.ticket));
    }
    return out;
}

static nb::tuple before(Lineup &self, const Use &use, bool done_too)
{
    auto *ahead = new Ahead();
    nb::object made = nb::cast(ahead, nb::rv_policy::take_ownership);
    {
        nb::ft_lock_guard guard(self.lock);
        self.before(use, done_too, *ahead);
    }
    return nb::make_tuple(waits_of(*ahead, self, use), made);
}

void bind_lineup(nb::module_ &m)
{
    nb::class_<Use>(m, "Use").def(nb::init<int, nb::sequence, nb::sequence, nb::sequence>(), "slot"_a, "streams"_a,
                                  "touched"_a, "written"_a);
    nb::class_<Ahead>(m, "Ahead");
    nb::class_<Lineup>(m, "Lineup")
        .def(nb::init<nb::object, nb::sequence, size_t>(), "joined"_a, "homes"_a, "n_slots"_a)
        .def("busy", &Lineup::busy)
        .def("free_slot", &Lineup::free_slot)
        .def("before", before, "use"_a, "done_too"_a);
}

} // namespace binding
