// The queue of a backend with its thread, and events. A part of fake.cpp.

// -- a queue and its thread

class Queue
{
  public:
    Queue() : cpu(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr)), worker([this] { work(); })
    {
    }

    ~Queue()
    {
        {
            std::lock_guard<std::mutex> guard(lock);
            stopping = true;
        }
        changed.notify_all();
        worker.join();
        ggml_backend_free(cpu);
    }

    void push(std::function<void()> item)
    {
        std::lock_guard<std::mutex> guard(lock);
        items.push_back(std::move(item));
        longest = std::max(longest.load(), int(items.size() + busy));
        changed.notify_all();
    }

    void synchronize()
    {
        std::unique_lock<std::mutex> guard(lock);
        changed.wait(guard, [this] { return items.empty() && !busy; });
        raise();
    }

    // Raises a failure at the next call, as drivers do.
    void raise()
    {
        if (!broken) return;
        broken = false;
        throw std::runtime_error("the fake device broke down");
    }

    std::atomic<bool> broken{false};
    ggml_backend_t cpu;

  private:
    void work()
    {
        std::unique_lock<std::mutex> guard(lock);
        for (;;) {
            changed.wait(guard, [this] { return stopping || !items.empty(); });
            if (items.empty()) return;
            std::function<void()> item = std::move(items.front());
            items.pop_front();
            busy = true;
            guard.unlock();
            std::this_thread::sleep_for(std::chrono::microseconds(delay_us.load()));
            item();
            guard.lock();
            busy = false;
            changed.notify_all();
        }
    }

    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::function<void()>> items;
    bool busy = false, stopping = false;
    std::thread worker;
};

Queue &queue_of(ggml_backend_t backend)
{
    return *static_cast<Queue *>(backend->context);
}

// -- events: how often one was recorded, and up to which of these records it is done

struct Event {
    std::mutex lock;
    std::condition_variable changed;
    uint64_t recorded = 0, done = 0;
    int waiting = 0;
    Queue *queue = nullptr;
};

void event_record(ggml_backend_t backend, ggml_backend_event_t event)
{
    Event *e = static_cast<Event *>(event->context);
    std::lock_guard<std::mutex> guard(e->lock);
    if (e->waiting > 0) ++misused; // Vulkan would let the waiting ones wait for ever
    uint64_t turn = ++e->recorded;
    e->queue = &queue_of(backend);
    queue_of(backend).push([e, turn] {
        std::lock_guard<std::mutex> inner(e->lock);
        e->done = turn;
        e->changed.notify_all();
    });
}

void event_wait(ggml_backend_t backend, ggml_backend_event_t event)
{
    Event *e = static_cast<Event *>(event->context);
    std::lock_guard<std::mutex> guard(e->lock);
    uint64_t turn = e->recorded;
    ++e->waiting;
    queue_of(backend).push([e, turn] {
        std::unique_lock<std::mutex> inner(e->lock);
        e->changed.wait(inner, [&] { return e->done >= turn; });
        --e->waiting;
    });
}

ggml_backend_event_t event_new(ggml_backend_dev_t device)
{
    return new ggml_backend_event{device, new Event};
}

void event_free(ggml_backend_dev_t, ggml_backend_event_t event)
{
    delete static_cast<Event *>(event->context);
    delete event;
}

void event_synchronize(ggml_backend_dev_t, ggml_backend_event_t event)
{
    Event *e = static_cast<Event *>(event->context);
    std::unique_lock<std::mutex> guard(e->lock);
    uint64_t turn = e->recorded;
    e->changed.wait(guard, [&] { return e->done >= turn; });
    if (e->queue != nullptr) e->queue->raise();
}
