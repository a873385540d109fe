// A libcuda.so.1 that runs on the CPU: unmodified cuda.bindings and cuda.core take it for the driver.
//
// Streams are threads; memory is tracked, and overwritten when new or freed. A "cubin" is the text FAKE:<kernels> newline
// <shim>: a library of kernels for the host, and the one that runs them for a grid. fake_*: for tests. It blocks where the
// real driver blocks and refuses what that refuses, as listed below.

// Addresses of device memory cannot be touched by the host: the bytes lie elsewhere (fake_host). New memory is 0xff, a NaN,
// freed memory 0xdd. A full launch queue blocks the caller, pageable copies wait for the stream, capture forbids calls that
// synchronise and the first launch of a kernel, which loads it. A block has 48 KiB of shared memory unless its kernel was
// given more, and no more threads than its kernel has registers for. A pool keeps what was freed; pinned memory is limited.
// After an asynchronous error every call answers with it. Environment: FAKE_CUDA_DEVICES (1), _CC (90), _VERSION (13000),
// _MEMORY (1 GiB), _PINNED (2 GiB), _QUEUE (1024), _JITTER_US (0), _SEED (1).
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

// -- contexts, faults, who called what

struct Context {
    int device;
};
static Context contexts[16] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}};
static thread_local Context *current;
static std::atomic<int> sticky[16];
static thread_local bool marked;     // fake_mark_thread: the event loop's
static thread_local void *capturing; // the stream that this thread captures
static thread_local bool capture_broken;

struct Fault {
    long after; // calls that pass
    int code;
};
static std::mutex book_lock;
static std::map<std::string, std::vector<Fault>> faults;
static std::map<std::string, long> calls, marked_calls, counters;
static std::condition_variable gates_moved;
static std::map<std::string, int> gates, at_gate; // entries that do not return yet, and how many threads are in them

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
        if (marked) ++marked_calls[name]; // it is told apart, and not held up: a test would stand still
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

// -- streams

static std::mutex hold_lock;
static std::condition_variable hold_cond;
static int holds;

struct Node { // of a graph
    const void *kind;
    std::function<void()> run;
};
struct Graph {
    std::vector<Node> nodes;
};

struct Stream {
    std::mutex m;
    std::condition_variable more, less;
    std::deque<std::function<void()>> queue;
    bool stop = false, busy = false;
    int device, priority;
    size_t limit;
    Graph *capture = nullptr;
    uint64_t seed;
    std::thread thread;

    Stream(int d, int p) : device(d), priority(p), limit(static_cast<size_t>(env("FAKE_CUDA_QUEUE", 1024)))
    {
        static std::atomic<uint64_t> n{0};
        seed = static_cast<uint64_t>(env("FAKE_CUDA_SEED", 1)) * 7919 + ++n;
        thread = std::thread([this] { run(); });
    }
    ~Stream()
    {
        {
            std::lock_guard<std::mutex> l(m);
            stop = true;
            more.notify_all();
        }
        thread.join();
    }
    void pause()
    {
        {
            std::unique_lock<std::mutex> l(hold_lock);
            hold_cond.wait(l, [] { return holds == 0; });
        }
        static long jitter = env("FAKE_CUDA_JITTER_US", 0);
        if (jitter == 0) return;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        std::this_thread::sleep_for(std::chrono::microseconds((seed >> 33) % static_cast<uint64_t>(jitter)));
    }
    void run()
    {
        std::unique_lock<std::mutex> l(m);
        for (;;) {
            more.wait(l, [this] { return stop || !queue.empty(); });
            if (queue.empty()) return;
            auto work = std::move(queue.front());
            busy = true;
            l.unlock();
            pause();
            if (sticky[device] == OK) work();
            work = nullptr;
            l.lock();
            queue.pop_front();
            busy = false;
            less.notify_all();
        }
    }
    int push(const void *kind, std::function<void()> work)
    {
        if (capture) {
            capture->nodes.push_back({kind, std::move(work)});
            return OK;
        }
        std::unique_lock<std::mutex> l(m);
        if (queue.size() >= limit) {
            count("full queue");
            if (marked) count("full queue of the marked thread");
            less.wait(l, [this] { return queue.size() < limit; });
        }
        queue.push_back(std::move(work));
        more.notify_one();
        return OK;
    }
    void sync()
    {
        std::unique_lock<std::mutex> l(m);
        less.wait(l, [this] { return queue.empty() && !busy; });
    }
    bool idle()
    {
        std::lock_guard<std::mutex> l(m);
        return queue.empty() && !busy;
    }
};

static std::mutex streams_lock;
static std::vector<std::shared_ptr<Stream>> &streams()
{
    static auto *list = new std::vector<std::shared_ptr<Stream>>; // never freed: threads outlive static destructors
    return *list;
}

static Stream *default_stream()
{
    static Stream *all[16];
    int d = current ? current->device : 0;
    std::lock_guard<std::mutex> l(streams_lock);
    if (!all[d]) {
        all[d] = new Stream(d, 0);
        streams().emplace_back(all[d]);
    }
    return all[d];
}

static Stream *stream_of(void *handle)
{
    return reinterpret_cast<uintptr_t>(handle) <= 2 ? default_stream() : static_cast<Stream *>(handle);
}

static void sync_all()
{
    std::vector<std::shared_ptr<Stream>> list; // which another thread may destroy meanwhile
    {
        std::lock_guard<std::mutex> l(streams_lock);
        list = streams();
    }
    for (auto &s : list) s->sync();
}

// -- memory

struct Block {
    size_t size;
    int device;             // -1: pinned host memory, -2: registered
    char *shadow = nullptr; // where the bytes of device memory really are; its address cannot be touched
};
static std::mutex memory_lock;
static std::map<Ptr, Block> blocks;
static size_t used[16];
static size_t kept[16]; // of the device's memory, by its pools: what is used, and what was freed and not trimmed
static size_t pinned;   // bytes of the host, allocated or registered
static const size_t POOL_UNIT = 2 << 20;

static size_t pages(size_t n, size_t page)
{
    return (n + page - 1) / page * page;
}

static bool pin(size_t n) // under memory_lock
{
    static size_t most = static_cast<size_t>(env("FAKE_CUDA_PINNED", 2l << 30));
    if (pinned + pages(n, 4096) > most) return false;
    pinned += pages(n, 4096);
    return true;
}

static bool find(Ptr p, size_t n, Block *out = nullptr)
{
    std::lock_guard<std::mutex> l(memory_lock);
    auto it = blocks.upper_bound(p);
    if (it == blocks.begin()) return false;
    --it;
    if (out) *out = it->second;
    return p >= it->first && p + n <= it->first + it->second.size;
}

static bool on_device(Ptr p, size_t n)
{
    Block b;
    if (find(p, n, &b) && b.device >= 0) return true;
    fprintf(stderr, "fake libcuda: %zu bytes at %#lx are outside of every allocation\n", n, static_cast<long>(p));
    count("wild");
    return false;
}

// Where the bytes are that belong to an address: elsewhere for memory of a device, there for all else.
EXPORT void *fake_host(Ptr p)
{
    std::lock_guard<std::mutex> l(memory_lock);
    auto it = blocks.upper_bound(p);
    if (it == blocks.begin()) return reinterpret_cast<void *>(p);
    --it;
    if (it->second.shadow && p < it->first + pages(it->second.size, 4096)) return it->second.shadow + (p - it->first);
    return reinterpret_cast<void *>(p);
}

static int allocate(Ptr *p, size_t n, int device)
{
    if (n == 0) return INVALID_VALUE;
    static size_t total = static_cast<size_t>(env("FAKE_CUDA_MEMORY", 1 << 30));
    {
        std::lock_guard<std::mutex> l(memory_lock);
        if (device >= 0 && used[device] + n > total) return OUT_OF_MEMORY;
        if (device < 0 && !pin(n)) return OUT_OF_MEMORY;
        if (device >= 0) used[device] += n;
        if (device >= 0) kept[device] = std::max(kept[device], std::min(total, pages(used[device], POOL_UNIT)));
    }
    size_t room = (n + 4095) / 4096 * 4096;
    void *m = aligned_alloc(4096, room);
    if (!m) return OUT_OF_MEMORY;
    memset(m, 0xff, room);
    *p = reinterpret_cast<Ptr>(m);
    char *shadow = nullptr;
    if (device >= 0) {
        shadow = static_cast<char *>(m);
        *p = reinterpret_cast<Ptr>(mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    }
    std::lock_guard<std::mutex> l(memory_lock);
    blocks[*p] = {n, device, shadow};
    return OK;
}

static int release(Ptr p)
{
    char *shadow;
    size_t room;
    {
        std::lock_guard<std::mutex> l(memory_lock);
        auto it = blocks.find(p);
        if (it == blocks.end() || it->second.device == -2) {
            fprintf(stderr, "fake libcuda: free of %#lx, which is no allocation\n", static_cast<long>(p));
            ++counters["wild"];
            return INVALID_VALUE;
        }
        if (it->second.device >= 0) used[it->second.device] -= it->second.size;
        if (it->second.device < 0) pinned -= pages(it->second.size, 4096);
        shadow = it->second.shadow;
        room = (it->second.size + 4095) / 4096 * 4096;
        memset(shadow ? shadow : reinterpret_cast<void *>(p), 0xdd, it->second.size);
        blocks.erase(it);
    }
    if (shadow) munmap(reinterpret_cast<void *>(p), room);
    free(shadow ? shadow : reinterpret_cast<void *>(p));
    return OK;
}

// -- devices and contexts

EXPORT int cuInit(unsigned)
{
    ENTER("cuInit");
    return n_devices() ? OK : NO_DEVICE;
}
EXPORT int cuDriverGetVersion(int *v)
{
    *v = static_cast<int>(env("FAKE_CUDA_VERSION", 13000));
    return OK;
}
EXPORT int cuDeviceGetCount(int *n)
{
    ENTER("cuDeviceGetCount");
    *n = n_devices();
    return OK;
}
EXPORT int cuDeviceGet(int *d, int i)
{
    if (i < 0 || i >= n_devices()) return INVALID_DEVICE;
    *d = i;
    return OK;
}
EXPORT int cuDeviceGetName(char *s, int n, int d)
{
    snprintf(s, static_cast<size_t>(n), "Fake CUDA device %d", d);
    return OK;
}
EXPORT int cuDeviceGetUuid_v2(void *u, int d)
{
    memset(u, 0, 16);
    static_cast<char *>(u)[15] = static_cast<char>(d);
    return OK;
}
EXPORT int cuDeviceTotalMem_v2(size_t *n, int)
{
    ENTER("cuDeviceTotalMem");
    *n = static_cast<size_t>(env("FAKE_CUDA_MEMORY", 1 << 30));
    return OK;
}
EXPORT int cuDeviceGetPCIBusId(char *s, int n, int d)
{
    snprintf(s, static_cast<size_t>(n), "0000:%02X:00.0", d + 10);
    return OK;
}
EXPORT int cuDeviceGetAttribute(int *v, int attribute, int)
{
    int cc = static_cast<int>(env("FAKE_CUDA_CC", 90));
    static const std::map<int, int> known = {
        {1, 1024},  {2, 1024}, {3, 1024},    {4, 64},   {5, 2147483647}, {6, 65535}, {7, 65535},
        {8, 49152}, {10, 32},  {12, 65536},  {16, 132}, {38, 50 << 20},  {39, 2048}, {40, 3},
        {41, 1},    {78, 1},   {97, 232448}, {99, 1},   {115, 1},        {102, 1},   {11, INT32_MAX},
    };
    auto found = known.find(attribute);
    *v = attribute == 75 ? cc / 10 : attribute == 76 ? cc % 10 : found == known.end() ? 0 : found->second;
    return OK;
}
EXPORT int cuDeviceCanAccessPeer(int *can, int a, int b)
{
    ENTER("cuDeviceCanAccessPeer");
    *can = a != b;
    return OK;
}
EXPORT int cuDevicePrimaryCtxRetain(void **c, int d)
{
    ENTER("cuDevicePrimaryCtxRetain");
    if (d < 0 || d >= n_devices()) return INVALID_DEVICE;
    *c = &contexts[d];
    return OK;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int)
{
    return OK;
}
EXPORT int cuDevicePrimaryCtxGetState(int, unsigned *flags, int *active)
{
    *flags = 0;
    *active = 1;
    return OK;
}
EXPORT int cuCtxGetCurrent(void **c)
{
    *c = current;
    return OK;
}
EXPORT int cuCtxSetCurrent(void *c)
{
    current = static_cast<Context *>(c);
    return OK;
}
EXPORT int cuCtxPushCurrent_v2(void *c)
{
    current = static_cast<Context *>(c);
    return OK;
}
EXPORT int cuCtxPopCurrent_v2(void **c)
{
    *c = current;
    return OK;
}
EXPORT int cuCtxGetDevice(int *d)
{
    NEEDS_CONTEXT();
    *d = current->device;
    return OK;
}
EXPORT int cuCtxGetDevice_v2(int *d, void *c)
{
    Context *x = c ? static_cast<Context *>(c) : current;
    if (!x) return INVALID_CONTEXT;
    *d = x->device;
    return OK;
}
EXPORT int cuCtxGetStreamPriorityRange(int *low, int *high)
{
    *low = 0;
    *high = -5;
    return OK;
}
EXPORT int cuCtxSynchronize()
{
    ENTER("cuCtxSynchronize");
    sync_all();
    return current ? sticky[current->device].load() : OK;
}

static const std::map<int, std::pair<const char *, const char *>> error_names = {
    {OK, {"CUDA_SUCCESS", "no error"}},
    {INVALID_VALUE, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
    {OUT_OF_MEMORY, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
    {NO_DEVICE, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
    {INVALID_IMAGE, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
    {NOT_FOUND, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
    {NOT_READY, {"CUDA_ERROR_NOT_READY", "device not ready"}},
    {ILLEGAL_ADDRESS, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
    {719, {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
    {NOT_SUPPORTED, {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"}},
    {CAPTURE_UNSUPPORTED, {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not permitted when stream is capturing"}},
};
EXPORT int cuGetErrorName(int code, const char **text)
{
    auto found = error_names.find(code);
    *text = found == error_names.end() ? "CUDA_ERROR_UNKNOWN" : found->second.first;
    return OK;
}
EXPORT int cuGetErrorString(int code, const char **text)
{
    auto found = error_names.find(code);
    *text = found == error_names.end() ? "unknown error" : found->second.second;
    return OK;
}

// -- streams and events as the driver has them

EXPORT int cuStreamCreateWithPriority(void **s, unsigned, int priority)
{
    ENTER("cuStreamCreate");
    NEEDS_CONTEXT();
    auto *stream = new Stream(current->device, priority);
    std::lock_guard<std::mutex> l(streams_lock);
    streams().emplace_back(stream);
    *s = stream;
    return OK;
}
EXPORT int cuStreamCreate(void **s, unsigned flags)
{
    return cuStreamCreateWithPriority(s, flags, 0);
}
EXPORT int cuStreamDestroy_v2(void *s)
{
    enter("cuStreamDestroy");
    std::shared_ptr<Stream> stream;
    {
        std::lock_guard<std::mutex> l(streams_lock);
        auto &list = streams();
        auto found = std::find_if(list.begin(), list.end(), [&](auto &each) { return each.get() == s; });
        if (found == list.end()) return INVALID_HANDLE;
        stream = *found;
        list.erase(found);
    }
    stream->sync();
    return OK;
}
EXPORT int cuStreamSynchronize(void *s)
{
    ENTER("cuStreamSynchronize");
    NOT_WHILE_CAPTURING();
    stream_of(s)->sync();
    return sticky[stream_of(s)->device];
}
EXPORT int cuStreamQuery(void *s)
{
    ENTER("cuStreamQuery");
    return stream_of(s)->idle() ? OK : NOT_READY;
}
EXPORT int cuStreamGetCtx(void *s, void **c)
{
    *c = &contexts[stream_of(s)->device];
    return OK;
}
EXPORT int cuStreamGetCtx_v2(void *s, void **c, void **green)
{
    *green = nullptr;
    return cuStreamGetCtx(s, c);
}
EXPORT int cuStreamGetDevice(void *s, int *d)
{
    *d = stream_of(s)->device;
    return OK;
}
EXPORT int cuStreamGetPriority(void *s, int *p)
{
    *p = stream_of(s)->priority;
    return OK;
}
EXPORT int cuStreamGetFlags(void *, unsigned *flags)
{
    *flags = 1;
    return OK;
}
EXPORT int cuStreamIsCapturing(void *s, int *state)
{
    *state = stream_of(s)->capture != nullptr;
    return OK;
}
EXPORT int cuStreamGetCaptureInfo_v3(void *s, int *state, uint64_t *, void *, void *, void *, size_t *)
{
    return cuStreamIsCapturing(s, state);
}
EXPORT int cuStreamGetCaptureInfo_v2(void *s, int *state, uint64_t *, void *, void *, size_t *)
{
    return cuStreamIsCapturing(s, state);
}

struct Event {
    std::mutex m;
    std::condition_variable reached;
    uint64_t recorded = 0, done = 0;
    int device = 0;
    std::chrono::steady_clock::time_point at;
};
typedef std::shared_ptr<Event> EventRef;
static EventRef &event_of(void *e)
{
    return *static_cast<EventRef *>(e);
}
EXPORT int cuEventCreate(void **e, unsigned)
{
    ENTER("cuEventCreate");
    NEEDS_CONTEXT();
    auto *event = new EventRef(new Event);
    (*event)->device = current->device;
    count("events");
    *e = event;
    return OK;
}
EXPORT int cuEventDestroy_v2(void *e)
{
    enter("cuEventDestroy");
    count("events", -1);
    delete static_cast<EventRef *>(e);
    return OK;
}
EXPORT int cuEventRecord(void *e, void *s)
{
    ENTER("cuEventRecord");
    EventRef event = event_of(e);
    uint64_t ticket;
    {
        std::lock_guard<std::mutex> l(event->m);
        ticket = ++event->recorded;
    }
    return stream_of(s)->push(nullptr, [event, ticket] {
        std::lock_guard<std::mutex> l(event->m);
        event->done = std::max(event->done, ticket);
        event->at = std::chrono::steady_clock::now();
        event->reached.notify_all();
    });
}
EXPORT int cuEventRecordWithFlags(void *e, void *s, unsigned)
{
    return cuEventRecord(e, s);
}
EXPORT int cuEventQuery(void *e)
{
    ENTER("cuEventQuery");
    NOT_WHILE_CAPTURING();
    EventRef event = event_of(e);
    std::lock_guard<std::mutex> l(event->m);
    return event->done >= event->recorded ? OK : NOT_READY;
}
EXPORT int cuEventSynchronize(void *e)
{
    ENTER("cuEventSynchronize");
    NOT_WHILE_CAPTURING();
    EventRef event = event_of(e);
    std::unique_lock<std::mutex> l(event->m);
    uint64_t ticket = event->recorded;
    while (event->done < ticket && sticky[event->device] == OK)
        event->reached.wait_for(l, std::chrono::milliseconds(2));
    return sticky[event->device];
}
EXPORT int cuEventElapsedTime_v2(float *ms, void *a, void *b)
{
    *ms = std::chrono::duration<float, std::milli>(event_of(b)->at - event_of(a)->at).count();
    return OK;
}
EXPORT int cuEventElapsedTime(float *ms, void *a, void *b)
{
    return cuEventElapsedTime_v2(ms, a, b);
}
EXPORT int cuStreamWaitEvent(void *s, void *e, unsigned)
{
    ENTER("cuStreamWaitEvent");
    EventRef event = event_of(e);
    uint64_t ticket;
    {
        std::lock_guard<std::mutex> l(event->m);
        ticket = event->recorded;
    }
    return stream_of(s)->push(nullptr, [event, ticket] {
        std::unique_lock<std::mutex> l(event->m);
        while (event->done < ticket && sticky[event->device] == OK)
            event->reached.wait_for(l, std::chrono::milliseconds(2));
    });
}
EXPORT int cuLaunchHostFunc(void *s, void (*f)(void *), void *data)
{
    ENTER("cuLaunchHostFunc");
    return stream_of(s)->push(nullptr, [=] { f(data); });
}

// -- memory as the driver has it

EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    ENTER("cuMemGetInfo");
    NEEDS_CONTEXT();
    *total = static_cast<size_t>(env("FAKE_CUDA_MEMORY", 1 << 30));
    std::lock_guard<std::mutex> l(memory_lock);
    *free_bytes = *total - kept[current->device]; // what a pool keeps is not free for others
    return OK;
}
EXPORT int cuMemAlloc_v2(Ptr *p, size_t n)
{
    ENTER("cuMemAlloc");
    NOT_WHILE_CAPTURING();
    NEEDS_CONTEXT();
    return allocate(p, n, current->device);
}
EXPORT int cuMemFree_v2(Ptr p)
{
    enter("cuMemFree");
    sync_all();
    return release(p);
}
EXPORT int cuMemAllocAsync(Ptr *p, size_t n, void *)
{
    ENTER("cuMemAllocAsync");
    NEEDS_CONTEXT();
    return allocate(p, n, current->device);
}
struct Pool {
    int device;
};
EXPORT int cuMemAllocFromPoolAsync(Ptr *p, size_t n, void *pool, void *)
{
    ENTER("cuMemAllocFromPoolAsync");
    NOT_WHILE_CAPTURING();
    return allocate(p, n, static_cast<Pool *>(pool)->device);
}
EXPORT int cuMemFreeAsync(Ptr p, void *s)
{
    ENTER("cuMemFreeAsync");
    return stream_of(s)->push(nullptr, [p] { release(p); });
}
EXPORT int cuMemHostAlloc(void **p, size_t n, unsigned)
{
    ENTER("cuMemHostAlloc");
    NOT_WHILE_CAPTURING();
    NEEDS_CONTEXT();
    return allocate(reinterpret_cast<Ptr *>(p), n, -1);
}
EXPORT int cuMemAllocHost_v2(void **p, size_t n)
{
    return cuMemHostAlloc(p, n, 0);
}
EXPORT int cuMemFreeHost(void *p)
{
    enter("cuMemFreeHost");
    sync_all();
    return release(reinterpret_cast<Ptr>(p));
}
EXPORT int cuMemHostRegister_v2(void *p, size_t n, unsigned)
{
    ENTER("cuMemHostRegister");
    NOT_WHILE_CAPTURING();
    NEEDS_CONTEXT();
    Ptr at = reinterpret_cast<Ptr>(p);
    if (!n) return INVALID_VALUE;
    std::lock_guard<std::mutex> l(memory_lock);
    auto next = blocks.lower_bound(at);
    if (next != blocks.end() && next->first < at + n) return ALREADY_REGISTERED;
    if (next != blocks.begin() && std::prev(next)->first + std::prev(next)->second.size > at) return ALREADY_REGISTERED;
    if (!pin(n)) return OUT_OF_MEMORY;
    blocks[at] = {n, -2};
    return OK;
}
EXPORT int cuMemHostUnregister(void *p)
{
    enter("cuMemHostUnregister");
    sync_all();
    std::lock_guard<std::mutex> l(memory_lock);
    auto it = blocks.find(reinterpret_cast<Ptr>(p));
    if (it == blocks.end() || it->second.device != -2) return NOT_REGISTERED;
    pinned -= pages(it->second.size, 4096);
    blocks.erase(it);
    return OK;
}
EXPORT int cuPointerGetAttributes(unsigned n, const int *attributes, void **values, Ptr p)
{
    ENTER("cuPointerGetAttributes");
    Block b{0, 0};
    bool known = find(p, 1, &b);
    for (unsigned i = 0; i < n; ++i) {
        if (attributes[i] == 2) {
            *static_cast<unsigned *>(values[i]) = !known ? 0 : b.device >= 0 ? 2 : 1;
        } else if (attributes[i] == 9) {
            *static_cast<int *>(values[i]) = known && b.device >= 0 ? b.device : 0;
        } else if (attributes[i] == 1) {
            *static_cast<void **>(values[i]) = known ? &contexts[b.device >= 0 ? b.device : 0] : nullptr;
        } else {
            memset(values[i], 0, 4);
        }
    }
    return OK;
}
EXPORT int cuPointerGetAttribute(void *value, int attribute, Ptr p)
{
    return cuPointerGetAttributes(1, &attribute, &value, p);
}

// Copies between addresses of the host wait for the stream if those are pageable, as the driver may.
static int host_side(Stream *s, Ptr p, size_t n)
{
    if (find(p, n)) return OK;
    count("pageable");
    if (marked) count("pageable of the marked thread");
    s->sync();
    return OK;
}
EXPORT int cuMemcpyHtoDAsync_v2(Ptr d, const void *s, size_t n, void *stream)
{
    ENTER("cuMemcpyHtoDAsync");
    if (!on_device(d, n)) return INVALID_VALUE;
    Stream *to = stream_of(stream);
    bool pinned = find(reinterpret_cast<Ptr>(s), n);
    host_side(to, reinterpret_cast<Ptr>(s), n);
    to->push(nullptr, [=] { memcpy(fake_host(d), s, n); });
    if (!pinned) to->sync();
    return OK;
}
EXPORT int cuMemcpyDtoHAsync_v2(void *d, Ptr s, size_t n, void *stream)
{
    ENTER("cuMemcpyDtoHAsync");
    if (!on_device(s, n)) return INVALID_VALUE;
    Stream *to = stream_of(stream);
    bool pinned = find(reinterpret_cast<Ptr>(d), n);
    host_side(to, reinterpret_cast<Ptr>(d), n);
    to->push(nullptr, [=] { memcpy(d, fake_host(s), n); });
    if (!pinned) to->sync();
    return OK;
}
EXPORT int cuMemcpyDtoDAsync_v2(Ptr d, Ptr s, size_t n, void *stream)
{
    ENTER("cuMemcpyDtoDAsync");
    if (!on_device(d, n) || !on_device(s, n)) return INVALID_VALUE;
    if (d < s + n && s < d + n && d != s) count("overlapping copies"); // undefined on a device
    return stream_of(stream)->push(nullptr, [=] { memcpy(fake_host(d), fake_host(s), n); });
}
EXPORT int cuMemcpyAsync(Ptr d, Ptr s, size_t n, void *stream)
{
    ENTER("cuMemcpyAsync");
    return stream_of(stream)->push(nullptr, [=] { memmove(fake_host(d), fake_host(s), n); });
}
EXPORT int cuMemcpyPeerAsync(Ptr d, void *dc, Ptr s, void *sc, size_t n, void *stream)
{
    ENTER("cuMemcpyPeerAsync");
    Block to, from;
    if (!find(d, n, &to) || !find(s, n, &from) || to.device != static_cast<Context *>(dc)->device ||
        from.device != static_cast<Context *>(sc)->device)
        return INVALID_VALUE;
    count("peer copies");
    return stream_of(stream)->push(nullptr, [=] { memcpy(fake_host(d), fake_host(s), n); });
}
struct Copy2D {
    size_t src_x, src_y;
    int src_kind;
    const void *src_host;
    Ptr src_device;
    void *src_array;
    size_t src_pitch, dst_x, dst_y;
    int dst_kind;
    void *dst_host;
    Ptr dst_device;
    void *dst_array;
    size_t dst_pitch, width, height;
};
EXPORT int cuMemcpy2DAsync_v2(const Copy2D *given, void *stream)
{
    ENTER("cuMemcpy2DAsync");
    Copy2D c = *given;
    if (c.height == 0 || c.src_x + c.width > c.src_pitch || c.dst_x + c.width > c.dst_pitch) return INVALID_VALUE;
    if ((c.src_kind == 2 && c.src_pitch > INT32_MAX) || (c.dst_kind == 2 && c.dst_pitch > INT32_MAX))
        return INVALID_VALUE; // CU_DEVICE_ATTRIBUTE_MAX_PITCH
    size_t src_n = (c.height - 1) * c.src_pitch + c.width, dst_n = (c.height - 1) * c.dst_pitch + c.width;
    Ptr src = c.src_kind == 1 ? reinterpret_cast<Ptr>(c.src_host) : c.src_device;
    Ptr dst = c.dst_kind == 1 ? reinterpret_cast<Ptr>(c.dst_host) : c.dst_device;
    Stream *s = stream_of(stream);
    if (c.src_kind == 2 && !on_device(src, src_n)) return INVALID_VALUE;
    if (c.dst_kind == 2 && !on_device(dst, dst_n)) return INVALID_VALUE;
    if (c.src_kind == 1) host_side(s, src, src_n);
    if (c.dst_kind == 1) host_side(s, dst, dst_n);
    return s->push(nullptr, [=] {
        for (size_t i = 0; i < c.height; ++i)
            memcpy(fake_host(dst + i * c.dst_pitch), fake_host(src + i * c.src_pitch), c.width);
    });
}
EXPORT int cuMemsetD8Async(Ptr d, unsigned char value, size_t n, void *stream)
{
    ENTER("cuMemsetD8Async");
    if (!on_device(d, n)) return INVALID_VALUE;
    return stream_of(stream)->push(&blocks, [=] { memset(fake_host(d), value, n); });
}
struct Props {
    int kind, handles, location, id;
};
static Pool *pool_of(int device)
{
    static Pool pools[16] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}};
    return &pools[device];
}
EXPORT int cuMemPoolCreate(void **pool, const Props *props)
{
    ENTER("cuMemPoolCreate");
    if (props->kind != 1 || props->location != 1 || props->id >= n_devices()) return INVALID_VALUE;
    *pool = new Pool{props->id};
    return OK;
}
EXPORT int cuMemPoolDestroy(void *)
{
    return OK;
}
EXPORT int cuMemPoolSetAttribute(void *, int, void *)
{
    ENTER("cuMemPoolSetAttribute");
    return OK;
}
EXPORT int cuMemPoolGetAttribute(void *, int, void *value)
{
    memset(value, 0, 8);
    return OK;
}
EXPORT int cuMemPoolSetAccess(void *, const void *, size_t)
{
    ENTER("cuMemPoolSetAccess");
    count("peer access");
    return OK;
}
EXPORT int cuMemPoolGetAccess(int *flags, void *, void *)
{
    *flags = 3;
    return OK;
}
EXPORT int cuMemPoolTrimTo(void *pool, size_t keep)
{
    ENTER("cuMemPoolTrimTo");
    int device = static_cast<Pool *>(pool)->device;
    std::lock_guard<std::mutex> l(memory_lock);
    kept[device] = std::min(kept[device], pages(std::max(keep, used[device]), POOL_UNIT));
    return OK;
}
EXPORT int cuDeviceGetDefaultMemPool(void **pool, int d)
{
    *pool = pool_of(d);
    return OK;
}
EXPORT int cuDeviceGetMemPool(void **pool, int d)
{
    *pool = pool_of(d);
    return OK;
}
EXPORT int cuMemGetMemPool(void **pool, void *, int)
{
    *pool = pool_of(0);
    return OK;
}
EXPORT int cuMemGetDefaultMemPool(void **pool, void *, int)
{
    *pool = pool_of(0);
    return OK;
}

// -- kernels

// NAME is the kernel, NAME_size how many bytes its one parameter has; shim_launch runs it for a grid.
typedef const char *Shim(void *kernel, const void *args, const unsigned grid[3], const unsigned block[3],
                         unsigned shared, int order);
struct Library {
    void *handle;
    Shim *shim;
    std::map<std::string, void *> kernels;
};
struct Kernel {
    Library *library;
    std::string name;
    void *call;
    unsigned size, threads;            // of its parameter; of a block at most, by its registers
    std::atomic<int> shared[16] = {};  // bytes that a block may be given on a device; 0: as without asking
    std::atomic<bool> loaded[16] = {}; // on a device: with the first launch, or when its function was asked for
};
EXPORT int cuLibraryLoadData(void **library, const void *image, void *, void *, unsigned, void *, void *, unsigned)
{
    ENTER("cuLibraryLoadData");
    NOT_WHILE_CAPTURING();
    if (memcmp(image, "FAKE:", 5) != 0) return INVALID_IMAGE;
    std::string paths = static_cast<const char *>(image) + 5;
    size_t cut = paths.find('\n');
    void *shim = dlopen(paths.substr(cut + 1).c_str(), RTLD_NOW | RTLD_GLOBAL);
    void *handle = shim ? dlopen(paths.substr(0, cut).c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!handle) {
        fprintf(stderr, "fake libcuda: %s\n", dlerror());
        return INVALID_IMAGE;
    }
    *library = new Library{handle, reinterpret_cast<Shim *>(dlsym(shim, "shim_launch")), {}};
    return OK;
}
static std::mutex library_lock;
EXPORT int cuLibraryUnload(void *)
{
    return OK;
}
EXPORT int cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
    ENTER("cuLibraryGetKernel");
    auto *lib = static_cast<Library *>(library);
    void *call = dlsym(lib->handle, name);
    auto *size = static_cast<unsigned *>(dlsym(lib->handle, (std::string(name) + "_size").c_str()));
    if (!call || !size) return NOT_FOUND;
    auto *threads = static_cast<unsigned *>(dlsym(lib->handle, (std::string(name) + "_threads").c_str()));
    std::lock_guard<std::mutex> l(library_lock);
    void *&known = lib->kernels[name];
    if (!known) known = new Kernel{lib, name, call, *size, threads ? *threads : 1024};
    *kernel = known;
    return OK;
}
// The names of all kernels: of each symbol NAME_size. GNU ld puts the table of strings behind that of symbols.
static std::vector<std::string> kernel_names(Library *lib)
{
    link_map *map;
    std::vector<std::string> names;
    if (dlinfo(lib->handle, RTLD_DI_LINKMAP, &map) != 0) return names;
    const ElfW(Sym) *symbols = nullptr;
    const char *strings = nullptr;
    for (ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; ++d) {
        if (d->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym) *>(d->d_un.d_ptr);
        if (d->d_tag == DT_STRTAB) strings = reinterpret_cast<const char *>(d->d_un.d_ptr);
    }
    for (auto *s = symbols; s && reinterpret_cast<const char *>(s + 1) <= strings; ++s) {
        std::string name = strings + s->st_name;
        if (s->st_shndx != SHN_UNDEF && name.size() > 5 && name.compare(name.size() - 5, 5, "_size") == 0)
            names.push_back(name.substr(0, name.size() - 5));
    }
    return names;
}
EXPORT int cuLibraryGetKernelCount(unsigned *n, void *library)
{
    ENTER("cuLibraryGetKernelCount");
    *n = static_cast<unsigned>(kernel_names(static_cast<Library *>(library)).size());
    return OK;
}
EXPORT int cuLibraryEnumerateKernels(void **kernels, unsigned n, void *library)
{
    ENTER("cuLibraryEnumerateKernels");
    auto names = kernel_names(static_cast<Library *>(library));
    for (unsigned i = 0; i < n && i < names.size(); ++i) {
        if (int code = cuLibraryGetKernel(&kernels[i], library, names[i].c_str())) return code;
    }
    return OK;
}
EXPORT int cuKernelGetLibrary(void **library, void *kernel)
{
    *library = static_cast<Kernel *>(kernel)->library;
    return OK;
}
// Kernels are loaded when they are first needed (CUDA_MODULE_LOADING=LAZY, the default), which a capture forbids.
static int load(Kernel *kernel, int device)
{
    if (kernel->loaded[device]) return OK;
    NOT_WHILE_CAPTURING();
    kernel->loaded[device] = true;
    count("kernels loaded");
    return OK;
}
EXPORT int cuKernelGetFunction(void **function, void *kernel)
{
    ENTER("cuKernelGetFunction");
    NEEDS_CONTEXT();
    *function = kernel;
    return load(static_cast<Kernel *>(kernel), current->device);
}
EXPORT int cuFuncGetAttribute(int *value, int attribute, void *function)
{
    ENTER("cuFuncGetAttribute");
    auto *k = static_cast<Kernel *>(function);
    *value = attribute == 0 ? static_cast<int>(k->threads) : attribute == 4 ? 32 : 0;
    return OK;
}
EXPORT int cuKernelGetParamInfo(void *kernel, size_t index, size_t *offset, size_t *size)
{
    ENTER("cuKernelGetParamInfo");
    if (index > 0) return INVALID_VALUE;
    *offset = 0;
    *size = static_cast<Kernel *>(kernel)->size;
    return OK;
}
EXPORT int cuKernelGetAttribute(int *value, int, void *, int)
{
    *value = 0;
    return OK;
}
EXPORT int cuKernelSetAttribute(int attribute, int value, void *kernel, int device)
{
    ENTER("cuKernelSetAttribute");
    if (attribute != 8) return OK;
    if (value < 0 || value > 232448) return INVALID_VALUE;
    static_cast<Kernel *>(kernel)->shared[device] = value;
    return OK;
}
struct LaunchConfig {
    unsigned gx, gy, gz, bx, by, bz, shared;
    void *stream;
    void *attributes;
    unsigned n_attributes;
};
EXPORT int cuLaunchKernelEx(const LaunchConfig *config, void *kernel, void **params, void **)
{
    ENTER("cuLaunchKernel");
    LaunchConfig c = *config;
    auto *k = static_cast<Kernel *>(kernel);
    uint64_t threads = static_cast<uint64_t>(c.bx) * c.by * c.bz;
    int on = stream_of(c.stream)->device;
    if (!c.gx || !c.gy || !c.gz || !threads || threads > 1024 || c.gy > 65535 || c.gz > 65535 || c.bz > 64 ||
        c.gx > INT32_MAX || c.shared > static_cast<unsigned>(std::max(49152, k->shared[on].load())))
        return INVALID_VALUE;
    if (threads > k->threads) return OUT_OF_RESOURCES;
    if (int code = load(k, on)) return code;
    auto args = std::make_shared<std::vector<uint64_t>>((k->size + 7) / 8);
    memcpy(args->data(), params[0], k->size);
    for (uint64_t &word : *args) {
        if (word > (1ull << 32)) word = reinterpret_cast<uint64_t>(fake_host(word));
    }
    Stream *s = stream_of(c.stream);
    int device = s->device;
    return s->push(k, [=] {
        if (sticky[device] != OK) return; // within a graph
        unsigned grid[3] = {c.gx, c.gy, c.gz}, block[3] = {c.bx, c.by, c.bz};
        const char *problem = k->library->shim(k->call, args->data(), grid, block, c.shared, 0);
        if (problem) {
            fprintf(stderr, "fake libcuda: %s: %s\n", k->name.c_str(), problem);
            sticky[device] = ILLEGAL_ADDRESS;
        }
        count("kernels");
    });
}
EXPORT int cuLaunchKernel(void *k, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **params, void **extra)
{
    LaunchConfig c{gx, gy, gz, bx, by, bz, shared, stream, nullptr, 0};
    return cuLaunchKernelEx(&c, k, params, extra);
}

// -- graphs

EXPORT int cuStreamBeginCapture_v2(void *s, int)
{
    ENTER("cuStreamBeginCapture");
    Stream *stream = stream_of(s);
    if (stream->capture) return INVALID_VALUE;
    stream->capture = new Graph;
    capturing = stream;
    capture_broken = false;
    return OK;
}
EXPORT int cuStreamEndCapture(void *s, void **graph)
{
    int code = enter("cuStreamEndCapture");
    Stream *stream = stream_of(s);
    Graph *made = stream->capture;
    stream->capture = nullptr;
    capturing = nullptr;
    *graph = nullptr;
    if (!made) return INVALID_VALUE;
    if (code == OK && capture_broken) code = CAPTURE_INVALIDATED;
    if (code != OK) {
        delete made;
        return code;
    }
    count("graphs");
    *graph = made;
    return OK;
}
EXPORT int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long)
{
    ENTER("cuGraphInstantiateWithFlags");
    count("graph execs");
    *exec = new std::shared_ptr<Graph>(new Graph(*static_cast<Graph *>(graph)));
    return OK;
}
struct UpdateInfo {
    int result;
    void *node, *from;
};
EXPORT int cuGraphExecUpdate_v2(void *exec, void *graph, UpdateInfo *info)
{
    ENTER("cuGraphExecUpdate");
    auto &old = *static_cast<std::shared_ptr<Graph> *>(exec);
    auto &now = *static_cast<Graph *>(graph);
    bool same = old->nodes.size() == now.nodes.size();
    for (size_t i = 0; same && i < now.nodes.size(); ++i) same = old->nodes[i].kind == now.nodes[i].kind;
    *info = {same ? 0 : 1, nullptr, nullptr};
    if (!same) return UPDATE_FAILURE;
    old = std::make_shared<Graph>(now); // launches under way keep what they were given
    count("graph updates");
    return OK;
}
EXPORT int cuGraphLaunch(void *exec, void *s)
{
    ENTER("cuGraphLaunch");
    std::shared_ptr<Graph> graph = *static_cast<std::shared_ptr<Graph> *>(exec);
    count("graph launches");
    return stream_of(s)->push(nullptr, [graph] {
        for (auto &node : graph->nodes) node.run();
    });
}
EXPORT int cuGraphDestroy(void *graph)
{
    enter("cuGraphDestroy");
    count("graphs", -1);
    delete static_cast<Graph *>(graph);
    return OK;
}
EXPORT int cuGraphExecDestroy(void *exec)
{
    enter("cuGraphExecDestroy");
    count("graph execs", -1);
    delete static_cast<std::shared_ptr<Graph> *>(exec);
    return OK;
}

// -- for tests

EXPORT void fake_fail(const char *entry, long after, int code)
{
    std::lock_guard<std::mutex> l(book_lock);
    faults[entry].push_back({after, code});
}
EXPORT void fake_heal()
{
    for (auto &s : sticky) {
        if (s != OK) sync_all(); // what was queued is dropped, and does not come back
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
    for (const char *name :
         {"full queue", "full queue of the marked thread", "pageable", "wild", "peer copies", "graph launches",
          "graph updates", "kernels", "overlapping copies", "pageable of the marked thread"})
        counters.erase(name);
}

// -- how cuda.bindings finds all this

static int unsupported()
{
    return NOT_SUPPORTED;
}
EXPORT int cuGetProcAddress_v2(const char *name, void **p, int version, uint64_t, int *status)
{
    static void *me = [] {
        Dl_info info;
        dladdr(reinterpret_cast<void *>(&cuInit), &info);
        return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }();
    // One name, another signature since that version.
    static const std::map<std::string, int> changed = {{"cuCtxGetDevice", 13000},
                                                       {"cuStreamGetCtx", 12050},
                                                       {"cuEventElapsedTime", 12080},
                                                       {"cuGetProcAddress", 12000}};
    auto since = changed.find(name);
    bool newer = since == changed.end() || version >= since->second;
    *p = nullptr;
    for (const char *suffix : {newer ? "_v2" : "", newer ? "" : "_v2", "_v3"}) {
        if (!*p) *p = dlsym(me, (std::string(name) + suffix).c_str());
    }
    if (!*p) *p = reinterpret_cast<void *>(&unsupported);
    if (status) *status = 0;
    return OK;
}
EXPORT int cuGetProcAddress(const char *name, void **p, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, p, version, flags, nullptr);
}
