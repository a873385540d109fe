// Lineup: what a submission over several streams has to wait for, because of those before it.
//
// One stream joins all others at the end of each submission, so its tickets tell which are done. Not here: the operations
// of a submission (script.cpp), what it touches (scheduler/run.py).
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
    : joined(std::move(joined_)), homes(streams_of(homes_)), seen(homes.size(), AG_TAIL), written(homes.size()),
      slots(n_slots)
{
    nb::cast<Stream &>(joined);
}

bool Lineup::busy() const
{
    return ag_stream_submitted(raw(joined)) > ag_stream_completed(raw(joined));
}

int Lineup::free_slot() const
{
    uint64_t done = ag_stream_completed(raw(joined));
    size_t best = 0;
    for (size_t i = 0; i < slots.size(); ++i) {
        if (slots[i] <= done) return static_cast<int>(i);
        if (slots[i] < slots[best]) best = i;
    }
    return static_cast<int>(best);
}

std::vector<Wait> Lineup::before(const Use &use, bool done_too) const
{
    auto matters = [done_too](ag_stream *other, uint64_t ticket) {
        return ticket > (done_too ? 0 : ag_stream_completed(other));
    };
    std::vector<Wait> ends, out; // ends: for all streams of the submission
    ag_stream *last = raw(joined);
    // Memory that all share comes free with the last of all; a slot with its own last user and those who share all.
    uint64_t end = use.slot < 0 ? ag_stream_submitted(last) : std::max(exclusive, slots.at(use_slot(use)));
    if (matters(last, end)) ends.push_back({nullptr, last, end});
    for (size_t i = 0; i < homes.size(); ++i) { // what others enqueued there since the last submission
        ag_stream *home = raw(homes[i]);
        uint64_t tail = ag_stream_submitted(home);
        if (tail != seen[i] && matters(home, tail)) ends.push_back({nullptr, home, tail});
    }
    for (const nb::object &owner : use.streams) {
        for (const Wait &wait : ends) {
            if (wait.other != raw(owner)) out.push_back({raw(owner), wait.other, wait.ticket});
        }
    }
    for (const auto &[home, streams] : use.touched) {
        ag_stream *other = raw(homes.at(home));
        if (!matters(other, written[home])) continue;
        for (const nb::object &owner : streams) {
            if (raw(owner) != other) out.push_back({raw(owner), other, written[home]});
        }
    }
    return out;
}

void Lineup::note(const Use &use)
{
    uint64_t end = ag_stream_submitted(raw(joined));
    if (use.slot < 0) {
        exclusive = end;
    } else {
        slots.at(use_slot(use)) = end;
    }
    for (size_t i = 0; i < homes.size(); ++i) seen[i] = ag_stream_submitted(raw(homes[i]));
    for (size_t home : use.written) written.at(home) = seen[home];
}

static nb::list before_list(Lineup &self, const Use &use, bool done_too)
{
    nb::list out;
    std::vector<Wait> waits = self.before(use, done_too);
    for (const Wait &wait : waits) {
        auto owner_of = [&](ag_stream *stream) -> nb::object {
            if (stream == raw(self.joined)) return self.joined;
            for (const nb::object &home : self.homes) {
                if (raw(home) == stream) return home;
            }
            for (const nb::object &owner : use.streams) {
                if (raw(owner) == stream) return owner;
            }
            for (const auto &[home, streams] : use.touched) {
                for (const nb::object &owner : streams) {
                    if (raw(owner) == stream) return owner;
                }
            }
            return nb::none(); // it is one of these
        };
        out.append(nb::make_tuple(owner_of(wait.stream), owner_of(wait.other), wait.ticket));
    }
    return out;
}

void bind_lineup(nb::module_ &m)
{
    nb::class_<Use>(m, "Use").def(nb::init<int, nb::sequence, nb::sequence, nb::sequence>(), "slot"_a, "streams"_a,
                                  "touched"_a, "written"_a);
    nb::class_<Lineup>(m, "Lineup")
        .def(nb::init<nb::object, nb::sequence, size_t>(), "joined"_a, "homes"_a, "n_slots"_a)
        .def("busy", &Lineup::busy)
        .def("free_slot", &Lineup::free_slot)
        .def("before", before_list, "use"_a, "done_too"_a)
        .def("note", &Lineup::note, "use"_a);
}

} // namespace binding
