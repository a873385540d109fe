// Contexts, injected faults, counts of calls. Not here: the entries of the driver.
#pragma once

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

typedef uint64_t Ptr;
enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    OUT_OF_RESOURCES = 701,
    ILLEGAL_ADDRESS = 700,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    UPDATE_FAILURE = 910,
};

static long env(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static int n_devices()
{
    static int n = static_cast<int>(env("FAKE_CUDA_DEVICES", 1));
    return n;
}

struct Context {
    int device;
};
static Context contexts[16] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}};
static thread_local Context *current;
static std::atomic<int> sticky[16];
static thread_local bool marked;     // set by fake_mark_thread: this is the event loop's thread
static thread_local void *capturing; // the stream whose work this thread is capturing
static thread_local bool capture_broken;

struct Fault {
    long after; // how many calls pass before the fault
    int code;
};
static std::mutex book_lock;
static std::map<std::string, std::vector<Fault>> faults;
static std::map<std::string, long> calls, marked_calls, counters;
static std::condition_variable gates_moved;
static std::map<std::string, int> gates, at_gate; // entries whose calls are held, and how many threads are held in each

static void count(const char *what, long n = 1)
{
    std::lock_guard<std::mutex> l(book_lock);
    counters[what] += n;
}

static int enter(const char *name)
{
    {
        std::unique_lock<std::mutex> l(book_lock);
        ++calls[name];
        if (marked) ++marked_calls[name]; // counted, but never held: the test's own thread would be stuck
        if (!marked && gates[name] > 0) {
            ++at_gate[name];
            gates_moved.wait(l, [name] { return gates[name] == 0; });
            --at_gate[name];
        }
        auto found = faults.find(name);
        if (found != faults.end()) {
            int code = OK;
            auto &list = found->second;
            for (size_t i = 0; i < list.size();) {
                if (list[i].after-- > 0 || code != OK) {
                    ++i;
                } else {
                    code = list[i].code;
                    list.erase(list.begin() + static_cast<long>(i));
                }
            }
            if (code != OK) return code;
        }
    }
    return current ? sticky[current->device].load() : OK;
}

#define EXPORT extern "C" __attribute__((visibility("default")))
#define ENTER(name) \
    if (int entered = enter(name)) return entered
#define NOT_WHILE_CAPTURING() \
    if (capturing) { \
        capture_broken = true; \
        return CAPTURE_UNSUPPORTED; \
    }
#define NEEDS_CONTEXT() \
    if (!current) return INVALID_CONTEXT
