// What submissions over several streams wait for, and what each of them touches.
#ifndef AG_BINDING_LINEUP_H
#define AG_BINDING_LINEUP_H

#include "objects.h"

namespace binding
{

using Streams = std::vector<nb::object>; // the Stream objects

// What one submission touches. touched: by index of a home, the streams that touch memory which its user placed there;
// written: homes where that memory is written.
struct Use {
    int slot; // of memory apart; -1: it uses what all share
    Streams streams;
    std::vector<std::pair<size_t, Streams>> touched;
    std::vector<size_t> written;
    Use(int slot_, nb::sequence streams_, nb::sequence touched_, nb::sequence written_);
};

struct Wait {
    ag_stream *stream, *other; // `stream` goes on after `ticket` of `other`
    uint64_t ticket;
};

// joined: at the end of each submission it waits for all of it. homes: the streams of the given backends, where others
// enqueue as well. seen: what was enqueued there when a submission last was; written: the last ticket there after which
// memory that the user placed was written.
struct Lineup {
    nb::object joined;
    Streams homes;
    std::vector<uint64_t> seen, written;
    uint64_t exclusive = 0; // ticket of `joined`: the last submission that used what all share
    std::vector<uint64_t> slots;
    Lineup(nb::object joined_, nb::sequence homes_, size_t n_slots);
    static size_t use_slot(const Use &use)
    {
        return static_cast<size_t>(use.slot);
    }
    bool busy() const;
    int free_slot() const; // one that nobody uses; else that of the oldest submission
    // done_too: also what is over, for those who have not seen that it is.
    std::vector<Wait> before(const Use &use, bool done_too) const;
    void note(const Use &use); // it has just been enqueued
};

} // namespace binding

#endif
