// A stream: a thread that carries out its queue, one item after the other. Not here: entries (streams.h).
#pragma once
#include "base.h"

static std::mutex hold_lock;
static std::condition_variable hold_cond;
static int holds;

struct Node { // a node of a graph
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
    std::atomic<bool> after_kernel{false}; // whether the last item pushed is a kernel
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
        after_kernel = false;
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
    // never freed: threads may use it after static destructors have run
    static auto *list = new std::vector<std::shared_ptr<Stream>>;
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
    std::vector<std::shared_ptr<Stream>> list; // keeps the streams alive, which another thread may destroy meanwhile
    {
        std::lock_guard<std::mutex> l(streams_lock);
        list = streams();
    }
    for (auto &s : list) s->sync();
}
