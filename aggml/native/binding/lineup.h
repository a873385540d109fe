// Submissions over several streams: what each waits for, and which memory each touches.
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

// What a submission has to wait for, and what its homes' last tickets were when that was found out: it holds for as
// long as they are.
struct Ahead {
    std::vector<Wait> waits;
    std::vector<ag_seen> tails; // by index of a home
};

// A stream of submissions, and for each home the last ticket of a user's operation that it comes after.
struct Row {
    nb::object owner;
    std::vector<uint64_t> user;
};

// joined: at the end of each submission it waits for all of it. homes: the streams of the given backends, where others
// enqueue as well. For each of them: own, its last ticket when a submission last was; user: the last one that was
// somebody else's then; written, touched: the last one after which memory that the user placed was written by a
// submission, or read or written.
struct Lineup {
    mutable nb::ft_mutex lock; // of all that changes; held by the caller of before() and note()
    nb::object joined;
    Streams homes;
    std::vector<uint64_t> own, user, written, touched;
    std::vector<Row> rows;
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
    void before(const Use &use, bool done_too, Ahead &out);
    // It has just been enqueued with these tails, in these batches.
    void note(const Use &use, const std::vector<ag_seen> &tails, const std::vector<ag_batch> &batches);

  private:
    Row &row(const nb::object &owner);
    uint64_t user_at(size_t home, uint64_t tail) const;
};

} // namespace binding

#endif
