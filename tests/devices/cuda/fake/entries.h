// The entries of a fake library: how often each was called, and which fails the next time.
//
// For cublaslt.cpp and nccl.cpp, which each have their own numbers. Not here: the driver's (base.h, control.h).
#include <map>
#include <mutex>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

static std::mutex lock;
static std::map<std::string, int> failing; // entry -> status of its next call
static std::map<std::string, long> calls;

// Counts a call. Returns the status that the entry has to return at once, or 0.
static int enter(const char *name)
{
    std::lock_guard<std::mutex> l(lock);
    ++calls[name];
    auto found = failing.find(name);
    if (found == failing.end()) return 0;
    int status = found->second;
    failing.erase(found);
    return status;
}

static void fail_next(const char *entry, int status)
{
    std::lock_guard<std::mutex> l(lock);
    failing[entry] = status;
}

static long calls_of(const char *entry)
{
    std::lock_guard<std::mutex> l(lock);
    return calls[entry];
}
