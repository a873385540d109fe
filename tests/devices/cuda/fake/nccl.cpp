// A libnccl.so.2 that sums on the host, in the streams of the fake driver: all GPUs of one process.
//
// It refuses what the real library refuses or hangs on: one GPU twice, a call for several GPUs of a communicator
// outside of a group, a group without one of the GPUs, counts or types that differ between GPUs, a stream or memory of
// another GPU, a capture, a communicator after its end, calls by two threads at a time. Each stream stops until the
// streams of all GPUs have arrived, as kernels of NCCL do. The order of summands is that of rings: part i of n begins
// with the GPU after number i. Functions fake_nccl_* are for tests. Environment: none.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "entries.h"

enum { SUCCESS = 0, CUDA_ERROR = 1, INTERNAL = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum { FLOAT16 = 6, FLOAT32 = 7, BFLOAT16 = 9 };

static std::atomic<int> asynchronous{SUCCESS}; // the state that communicators report
static std::atomic<int> inside{0};             // threads in calls that must not run at the same time
static std::string last_error;

static int told(int result, const char *why)
{
    std::lock_guard<std::mutex> l(lock);
    last_error = why;
    ++calls["refused"];
    return result;
}

// Calls of NCCL on communicators must not run at the same time.
struct Alone {
    bool alone = inside.fetch_add(1) == 0;
    ~Alone()
    {
        --inside;
    }
};

// Counts a call; a failure is told.
static int enter_or_tell(const char *name)
{
    const int result = enter(name);
    if (result == SUCCESS) return SUCCESS;
    std::lock_guard<std::mutex> l(lock);
    last_error = std::string("a test has ") + name + " fail";
    return result;
}
#define ENTER(name) \
    Alone alone; \
    if (!alone.alone) return told(INVALID_USAGE, "two threads at a time"); \
    if (int entered = enter_or_tell(name)) return entered

struct Comm;
struct Clique { // the communicators that one ncclCommInitAll made
    std::mutex m;
    std::condition_variable moved;
    std::vector<Comm *> comms;
    bool aborted = false;
};
struct Comm {
    std::shared_ptr<Clique> clique;
    int rank, device;
};
static std::set<Comm *> alive;

static void *driver(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

static Comm *comm_of(void *handle)
{
    std::lock_guard<std::mutex> l(lock);
    auto found = alive.find(static_cast<Comm *>(handle));
    return found == alive.end() ? nullptr : *found;
}

EXPORT int ncclCommInitAll(void **comms, int n, const int *devices)
{
    ENTER("ncclCommInitAll");
    int count = 0;
    auto *ask = reinterpret_cast<int (*)(int *)>(driver("cuDeviceGetCount"));
    if (!ask || ask(&count) != 0) return told(CUDA_ERROR, "no driver");
    std::set<int> seen(devices, devices + n);
    if (n < 1 || static_cast<int>(seen.size()) < n) return told(INVALID_USAGE, "Duplicate GPU detected");
    if (*seen.begin() < 0 || *seen.rbegin() >= count) return told(INVALID_ARGUMENT, "no such GPU");
    auto clique = std::make_shared<Clique>();
    std::lock_guard<std::mutex> l(lock);
    for (int i = 0; i < n; ++i) {
        auto *comm = new Comm{clique, i, devices[i]};
        clique->comms.push_back(comm);
        alive.insert(comm);
        comms[i] = comm;
    }
    return SUCCESS;
}

static int end(void *handle, bool abort)
{
    Comm *comm = comm_of(handle);
    if (!comm) return told(INVALID_ARGUMENT, "no communicator");
    {
        std::lock_guard<std::mutex> l(comm->clique->m);
        if (abort) comm->clique->aborted = true;
        comm->clique->moved.notify_all();
    }
    std::lock_guard<std::mutex> l(lock);
    alive.erase(comm);
    delete comm;
    return SUCCESS;
}
EXPORT int ncclCommDestroy(void *comm)
{
    ENTER("ncclCommDestroy");
    return end(comm, false);
}
EXPORT int ncclCommAbort(void *comm)
{
    ENTER("ncclCommAbort");
    return end(comm, true);
}
EXPORT int ncclCommGetAsyncError(void *comm, int *result)
{
    ENTER("ncclCommGetAsyncError");
    if (!comm_of(comm)) return told(INVALID_ARGUMENT, "no communicator");
    *result = asynchronous;
    if (*result != SUCCESS) told(SUCCESS, "a proxy failed");
    return SUCCESS;
}
EXPORT const char *ncclGetErrorString(int result)
{
    static const char *const text[] = {"no error",
                                       "unhandled cuda error",
                                       "unhandled system error",
                                       "internal error",
                                       "invalid argument",
                                       "invalid usage",
                                       "remote process exited or there was a network error"};
    return result >= 0 && result < 7 ? text[result] : "unknown result code";
}
EXPORT const char *ncclGetLastError(void *)
{
    std::lock_guard<std::mutex> l(lock);
    static thread_local std::string kept;
    kept = last_error;
    return kept.c_str();
}

// -- sums

struct Call {
    Comm *comm;
    const void *send;
    void *recv;
    size_t count;
    int type, operation;
    void *stream;
};
static thread_local int depth;
static thread_local int failed; // the first error in this group
static thread_local std::vector<Call> pending;

static size_t size_of(int type)
{
    return type == FLOAT32 ? 4 : 2;
}

static float element(const void *p, int type, size_t i)
{
    if (type == FLOAT32) return static_cast<const float *>(p)[i];
    uint16_t bits = static_cast<const uint16_t *>(p)[i];
    if (type == FLOAT16) {
        _Float16 half;
        memcpy(&half, &bits, 2);
        return static_cast<float>(half);
    }
    uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float out;
    memcpy(&out, &wide, 4);
    return out;
}

static void assign(void *p, int type, size_t i, float x)
{
    if (type == FLOAT32) {
        static_cast<float *>(p)[i] = x;
        return;
    }
    uint16_t bits;
    if (type == FLOAT16) {
        _Float16 half = static_cast<_Float16>(x);
        memcpy(&bits, &half, 2);
    } else {
        uint32_t wide;
        memcpy(&wide, &x, 4);
        bits = static_cast<uint16_t>((wide + 0x7fffu + (wide >> 16 & 1u)) >> 16);
    }
    static_cast<uint16_t *>(p)[i] = bits;
}

struct Meeting { // a sum, at which the streams of all GPUs meet
    std::shared_ptr<Clique> clique;
    std::vector<const void *> send;
    std::vector<void *> recv;
    size_t count, here = 0, done = 0;
    int type;
};

static void sum(const Meeting &m)
{
    size_t n = m.send.size();
    for (size_t i = 0; i < m.count; ++i) {
        size_t first = i * n / m.count + 1; // the GPU with which this part of the ring begins
        float x = element(m.send[first % n], m.type, i);
        for (size_t k = 1; k < n; ++k) {
            x += element(m.send[(first + k) % n], m.type, i);
            if (m.type != FLOAT32) { // each addition rounds
                uint32_t rounded = 0;
                assign(&rounded, m.type, 0, x);
                x = element(&rounded, m.type, 0);
            }
        }
        for (void *to : m.recv) assign(to, m.type, i, x);
    }
}

static void meet(void *data)
{
    std::unique_ptr<std::shared_ptr<Meeting>> given(static_cast<std::shared_ptr<Meeting> *>(data));
    Meeting &m = **given;
    std::unique_lock<std::mutex> l(m.clique->m);
    size_t n = m.send.size();
    if (++m.here == n) {
        sum(m);
        m.done = n;
        m.clique->moved.notify_all();
    }
    m.clique->moved.wait(l, [&m] { return m.done > 0 || m.clique->aborted; });
}

static int check(const Call &c)
{
    int device = -1, state = 0, ordinal = -1;
    auto *device_of = reinterpret_cast<int (*)(void *, int *)>(driver("cuStreamGetDevice"));
    auto *captures = reinterpret_cast<int (*)(void *, int *)>(driver("cuStreamIsCapturing"));
    auto *ask = reinterpret_cast<int (*)(unsigned, const int *, void **, uint64_t)>(driver("cuPointerGetAttributes"));
    if (!c.stream || device_of(c.stream, &device) != 0 || device != c.comm->device)
        return told(CUDA_ERROR, "a stream of another GPU");
    if (captures(c.stream, &state) != 0 || state) return told(INVALID_USAGE, "a stream that is captured");
    if (c.operation != 0) return told(INVALID_ARGUMENT, "no sum");
    if (c.type != FLOAT16 && c.type != FLOAT32 && c.type != BFLOAT16) return told(INVALID_ARGUMENT, "the type");
    for (const void *p : {c.send, static_cast<const void *>(c.recv)}) {
        for (size_t at : {size_t{0}, c.count * size_of(c.type) - 1}) {
            unsigned kind = 0;
            static const int attributes[] = {2, 9};
            void *values[] = {&kind, &ordinal};
            if (ask(2, attributes, values, reinterpret_cast<uint64_t>(p) + at) != 0 || kind != 2 ||
                ordinal != c.comm->device)
                return told(INVALID_ARGUMENT, "memory that is not of the GPU");
        }
    }
    return SUCCESS;
}

EXPORT int ncclAllReduce(const void *send, void *recv, size_t count, int type, int operation, void *handle,
                         void *stream)
{
    ENTER("ncclAllReduce");
    Comm *comm = comm_of(handle);
    int result = comm ? SUCCESS : told(INVALID_ARGUMENT, "no communicator");
    if (comm && depth == 0 && comm->clique->comms.size() > 1)
        result = told(INVALID_USAGE, "one thread, several GPUs, no group: it would wait for ever");
    Call call{comm, send, recv, count, type, operation, stream};
    if (result == SUCCESS) result = check(call);
    if (result == SUCCESS) pending.push_back(call);
    if (result != SUCCESS && depth > 0) failed = result;
    return result;
}

EXPORT int ncclGroupStart()
{
    ENTER("ncclGroupStart");
    ++depth;
    return SUCCESS;
}

EXPORT int ncclGroupEnd()
{
    ENTER("ncclGroupEnd");
    if (depth == 0) return told(INVALID_USAGE, "no group");
    if (--depth > 0) return SUCCESS;
    std::vector<Call> all;
    all.swap(pending);
    if (int result = failed) {
        failed = SUCCESS;
        return result;
    }
    std::map<Clique *, std::vector<Call>> of;
    for (auto &call : all) of[call.comm->clique.get()].push_back(call);
    auto *host = reinterpret_cast<void *(*)(uint64_t)>(driver("fake_host"));
    auto *push = reinterpret_cast<int (*)(void *, void (*)(void *), void *)>(driver("cuLaunchHostFunc"));
    for (auto &[clique, group] : of) {
        auto m = std::make_shared<Meeting>();
        std::set<int> ranks;
        for (auto &c : group) {
            ranks.insert(c.comm->rank);
            if (c.count != group[0].count || c.type != group[0].type)
                return told(INVALID_USAGE, "counts or types differ: it would hang");
            m->send.push_back(host(reinterpret_cast<uint64_t>(c.send)));
            m->recv.push_back(host(reinterpret_cast<uint64_t>(c.recv)));
        }
        if (ranks.size() != clique->comms.size() || group.size() != ranks.size())
            return told(INVALID_USAGE, "a GPU is missing or comes twice: it would hang");
        m->clique = group[0].comm->clique, m->count = group[0].count, m->type = group[0].type;
        for (auto &c : group) {
            if (push(c.stream, meet, new std::shared_ptr<Meeting>(m)) != 0) return told(CUDA_ERROR, "no launch");
        }
        std::lock_guard<std::mutex> l(lock);
        ++calls["sums"];
    }
    return SUCCESS;
}

EXPORT void fake_nccl_fail(const char *entry, int result)
{
    fail_next(entry, result);
}
EXPORT void fake_nccl_asynchronous(int result)
{
    asynchronous = result;
}
EXPORT long fake_nccl_calls(const char *entry)
{
    return calls_of(entry);
}
