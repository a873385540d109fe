// How tests control the driver and read from it: faults, holds, gates, counts.
#pragma once
#include "memory.h"

EXPORT void fake_fail(const char *entry, long after, int code)
{
    std::lock_guard<std::mutex> l(book_lock);
    faults[entry].push_back({after, code});
}
EXPORT void fake_heal()
{
    for (auto &s : sticky) {
        if (s != OK) sync_all(); // queued work of a failed device is dropped for good
    }
    std::lock_guard<std::mutex> l(book_lock);
    faults.clear();
    for (auto &s : sticky) s = OK;
}
EXPORT void fake_set_sticky(int device, int code)
{
    sticky[device] = code;
}
EXPORT void fake_hold(int by)
{
    std::lock_guard<std::mutex> l(hold_lock);
    holds += by;
    hold_cond.notify_all();
}
EXPORT void fake_gate(const char *entry, int by)
{
    std::lock_guard<std::mutex> l(book_lock);
    gates[entry] += by;
    gates_moved.notify_all();
}
EXPORT long fake_at_gate(const char *entry)
{
    std::lock_guard<std::mutex> l(book_lock);
    return at_gate[entry];
}
EXPORT void fake_mark_thread(int on)
{
    marked = on != 0;
}
EXPORT long fake_calls(const char *entry)
{
    std::lock_guard<std::mutex> l(book_lock);
    return calls[entry];
}
EXPORT long fake_marked_calls(const char *entry)
{
    std::lock_guard<std::mutex> l(book_lock);
    return marked_calls[entry];
}
EXPORT long fake_counter(const char *name)
{
    std::lock_guard<std::mutex> l(book_lock);
    return counters[name];
}
EXPORT long fake_live_blocks()
{
    std::lock_guard<std::mutex> l(memory_lock);
    return static_cast<long>(blocks.size());
}
EXPORT void fake_reset_counts()
{
    std::lock_guard<std::mutex> l(book_lock);
    calls.clear();
    marked_calls.clear();
    for (const char *name : {"full queue", "full queue of the marked thread", "pageable", "wild", "peer copies",
                             "direct peer copies", "read-only registrations", "graph launches", "graph updates",
                             "kernels", "overlapping copies", "pageable of the marked thread"})
        counters.erase(name);
}
