// A backend of ggml for tests: two devices that work asynchronously, with events, pinned memory and split buffers.
//
// Each backend has a thread that carries out its queue, and every item begins with a delay: a reader that does not wait
// reads old bytes. Bytes are read and graphs walked when their turn comes, not when they are queued. Nodes are computed
// by ggml's CPU backend, which has to be registered before. It records the longest queue, and events that are recorded
// while somebody waits for them (tests/devices/ggml/fakes.py reads both). A node named "break" fails when its turn
// comes.
#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace
{

constexpr size_t LARGEST = size_t(1) << 30;
constexpr size_t N_DEVICES = 2;

std::atomic<int> longest{0}, misused{0}, pinned_bytes{0}, delay_us{300};

ggml_backend_reg_t registry();
ggml_backend_dev_t device_at(size_t index);

#include "queue.hpp"

// -- plain buffers: memory that the host cannot access

void buffer_free(ggml_backend_buffer_t buffer)
{
    if (buffer->context != nullptr) ggml_aligned_free(buffer->context, buffer->size);
}

void *buffer_base(ggml_backend_buffer_t buffer)
{
    return buffer->context;
}

void buffer_memset(ggml_backend_buffer_t, ggml_tensor *tensor, uint8_t value, size_t offset, size_t size)
{
    memset(static_cast<char *>(tensor->data) + offset, value, size);
}

void buffer_set(ggml_backend_buffer_t, ggml_tensor *tensor, const void *data, size_t offset, size_t size)
{
    memcpy(static_cast<char *>(tensor->data) + offset, data, size);
}

void buffer_get(ggml_backend_buffer_t, const ggml_tensor *tensor, void *data, size_t offset, size_t size)
{
    memcpy(data, static_cast<const char *>(tensor->data) + offset, size);
}

void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value)
{
    memset(buffer->context, value, buffer->size);
}

const ggml_backend_buffer_i plain_buffer = {buffer_free, buffer_base, nullptr, buffer_memset, buffer_set, buffer_get,
                                            nullptr,     nullptr,     nullptr, buffer_clear,  nullptr};

ggml_backend_buffer_t plain_alloc(ggml_backend_buffer_type_t type, size_t size)
{
    if (size > LARGEST) return nullptr;
    return ggml_backend_buffer_init(type, plain_buffer, ggml_aligned_malloc(size), size);
}

const char *plain_name(ggml_backend_buffer_type_t type)
{
    return ggml_backend_dev_name(type->device);
}

size_t alignment(ggml_backend_buffer_type_t)
{
    return 64;
}

size_t largest_buffer(ggml_backend_buffer_type_t)
{
    return LARGEST;
}

ggml_backend_buffer_type_t plain_type(ggml_backend_dev_t device)
{
    static std::map<ggml_backend_dev_t, ggml_backend_buffer_type> types;
    static std::mutex lock;
    std::lock_guard<std::mutex> guard(lock);
    auto at = types.find(device);
    if (at == types.end())
        at = types
                 .insert({device,
                          {{plain_name, plain_alloc, alignment, largest_buffer, nullptr, nullptr}, device, nullptr}})
                 .first;
    return &at->second;
}

// -- pinned host memory, and memory that the caller provides

const char *pinned_name(ggml_backend_buffer_type_t)
{
    return "Fake_Host";
}

ggml_backend_buffer_t pinned_alloc(ggml_backend_buffer_type_t type, size_t size)
{
    pinned_bytes += int(size);
    return plain_alloc(type, size);
}

bool yes(ggml_backend_buffer_type_t)
{
    return true;
}

ggml_backend_buffer_type_t pinned_type(ggml_backend_dev_t)
{
    static ggml_backend_buffer_type type = {
        {pinned_name, pinned_alloc, alignment, largest_buffer, nullptr, yes}, device_at(0), nullptr};
    return &type;
}

ggml_backend_buffer_t from_host(ggml_backend_dev_t device, void *memory, size_t size, size_t)
{
    if (reinterpret_cast<uintptr_t>(memory) % 4096 != 0) return nullptr; // drivers accept only whole pages
    ggml_backend_buffer_i interface = plain_buffer;
    interface.free_buffer = nullptr;
    return ggml_backend_buffer_init(plain_type(device), interface, memory, size);
}

#include "split.hpp"

// -- backends

void set_async(ggml_backend_t backend, ggml_tensor *tensor, const void *data, size_t offset, size_t size)
{
    char *to = static_cast<char *>(tensor->data) + offset;
    queue_of(backend).push([to, data, size] { memcpy(to, data, size); });
}

void get_async(ggml_backend_t backend, const ggml_tensor *tensor, void *data, size_t offset, size_t size)
{
    const char *from = static_cast<const char *>(tensor->data) + offset;
    queue_of(backend).push([from, data, size] { memcpy(data, from, size); });
}

bool copy_async(ggml_backend_t, ggml_backend_t backend, const ggml_tensor *source, ggml_tensor *target)
{
    if (source->buffer->buft != target->buffer->buft) return false;
    const void *from = source->data;
    void *to = target->data;
    size_t size = ggml_nbytes(source);
    queue_of(backend).push([from, to, size] { memmove(to, from, size); });
    return true;
}

ggml_status compute(ggml_backend_t backend, ggml_cgraph *graph)
{
    Queue *queue = &queue_of(backend);
    queue->push([queue, graph] {
        for (int k = 0; k < graph->n_nodes; ++k) {
            ggml_tensor *node = graph->nodes[k];
            if (strcmp(node->name, "break") == 0) queue->broken = true;
            Gathered whole(node); // buffers of weights whose rows are divided between several devices
            ggml_cgraph one = ggml_graph_view(graph, k, k + 1);
            if (ggml_backend_graph_compute(queue->cpu, &one) != GGML_STATUS_SUCCESS) queue->broken = true;
        }
    });
    return GGML_STATUS_SUCCESS;
}

const char *backend_name(ggml_backend_t)
{
    return "Fake";
}

void backend_free(ggml_backend_t backend)
{
    delete &queue_of(backend);
    delete backend;
}

void synchronize(ggml_backend_t backend)
{
    queue_of(backend).synchronize();
}

ggml_backend_t open(ggml_backend_dev_t device, const char *)
{
    static ggml_guid guid = {0xfa, 0xfa};
    ggml_backend_i interface = {};
    interface.get_name = backend_name;
    interface.free = backend_free;
    interface.set_tensor_async = set_async;
    interface.get_tensor_async = get_async;
    interface.cpy_tensor_async = copy_async;
    interface.synchronize = synchronize;
    interface.graph_compute = compute;
    interface.event_record = event_record;
    interface.event_wait = event_wait;
    return new ggml_backend{&guid, interface, device, new Queue};
}

// -- devices and the registry

const char *device_name(ggml_backend_dev_t device)
{
    return static_cast<const char *>(device->context);
}

void memory(ggml_backend_dev_t, size_t *free_bytes, size_t *total)
{
    *free_bytes = *total = LARGEST;
}

enum ggml_backend_dev_type type_of(ggml_backend_dev_t)
{
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

void properties(ggml_backend_dev_t device, ggml_backend_dev_props *out)
{
    *out = {};
    out->name = out->description = device_name(device);
    out->memory_free = out->memory_total = LARGEST;
    out->type = GGML_BACKEND_DEVICE_TYPE_GPU;
    out->caps = {true, true, true, true, true};
}

bool supports(ggml_backend_dev_t, const ggml_tensor *node)
{
    for (int k = 0; k < GGML_MAX_SRC; ++k) {
        if (node->src[k] != nullptr && is_split(node->src[k]) && (k != 0 || node->op != GGML_OP_MUL_MAT)) return false;
    }
    return true;
}

bool takes_type(ggml_backend_dev_t device, ggml_backend_buffer_type_t type)
{
    return type == plain_type(device) || type->iface.get_name == split_name;
}

ggml_backend_dev_t device_at(size_t index)
{
    static const char *const names[N_DEVICES] = {"Fake0", "Fake1"};
    static const ggml_backend_device_i interface = {
        device_name, device_name, memory,     type_of, properties, open,       plain_type,       pinned_type,
        from_host,   supports,    takes_type, nullptr, event_new,  event_free, event_synchronize};
    static ggml_backend_device devices[N_DEVICES] = {{interface, nullptr, const_cast<char *>(names[0])},
                                                     {interface, nullptr, const_cast<char *>(names[1])}};
    devices[index].reg = registry();
    return &devices[index];
}

const char *registry_name(ggml_backend_reg_t)
{
    return "Fake";
}

size_t count(ggml_backend_reg_t)
{
    return N_DEVICES;
}

ggml_backend_dev_t get(ggml_backend_reg_t, size_t index)
{
    return device_at(index);
}

void *entry(ggml_backend_reg_t, const char *name)
{
    if (strcmp(name, "ggml_backend_split_buffer_type") == 0) return reinterpret_cast<void *>(split_type);
    return nullptr;
}

ggml_backend_reg_t registry()
{
    static ggml_backend_reg made = {GGML_BACKEND_API_VERSION, {registry_name, count, get, entry}, nullptr};
    return &made;
}

} // namespace

extern "C" {
GGML_BACKEND_API int fake_longest(bool reset)
{
    return reset ? longest.exchange(0) : longest.load();
}

GGML_BACKEND_API int fake_misused(void)
{
    return misused;
}

GGML_BACKEND_API int fake_pinned(void)
{
    return pinned_bytes;
}

GGML_BACKEND_API void fake_delay(int us)
{
    delay_us = us;
}
}

GGML_BACKEND_DL_IMPL(registry)
