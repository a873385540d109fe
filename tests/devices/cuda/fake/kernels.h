// Entries: libraries, kernels, launches.
#pragma once
#include "memory.h"

// A library defines NAME, the kernel, and NAME_size, the bytes of its only parameter. shim_launch runs it for a grid.
typedef const char *Shim(void *kernel, const void *args, const unsigned grid[3], const unsigned block[3],
                         unsigned shared, int order);
struct Library {
    void *handle;
    Shim *shim;
    std::map<std::string, void *> kernels;
    uint64_t *waited; // how many threads of the last launch waited for the kernel before it
};
struct Kernel {
    Library *library;
    std::string name;
    void *call;
    unsigned size, threads;            // size: of its parameter; threads: at most in a block, because of its registers
    std::atomic<int> shared[16] = {};  // shared memory of a block that was requested for each device; 0: none was
    std::atomic<bool> loaded[16] = {}; // for each device: set by the first launch, or when the function was requested
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
    *library = new Library{handle,
                           reinterpret_cast<Shim *>(dlsym(shim, "shim_launch")),
                           {},
                           static_cast<uint64_t *>(dlsym(shim, "shim_waited"))};
    return OK;
}
static std::mutex library_lock, shim_lock;
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
// The names of all kernels, from the symbols NAME_size. GNU ld puts the table of strings after that of symbols.
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
// A kernel is loaded when it is first needed (CUDA_MODULE_LOADING=LAZY, the default). A capture forbids loading.
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
struct LaunchAttribute { // the driver's CUlaunchAttribute
    int id, padding;
    int value[16];
};
struct LaunchConfig {
    unsigned gx, gy, gz, bx, by, bz, shared;
    void *stream;
    const LaunchAttribute *attributes;
    unsigned n_attributes;
};
// The only supported attribute is programmatic stream serialization: the kernel may begin before the previous work of
// the stream has ended, so it has to wait for that itself. The previous work has to be a kernel, too: this is a rule of
// ours, stricter than the driver's.
static int early(const LaunchConfig &c, Stream *stream, bool *found)
{
    *found = false;
    for (unsigned i = 0; i < c.n_attributes; ++i) {
        if (c.attributes[i].id != 6) return INVALID_VALUE;
        *found = *found || c.attributes[i].value[0] != 0;
    }
    return *found && !stream->after_kernel ? INVALID_VALUE : OK;
}
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
    bool overlaps;
    if (int code = early(c, s, &overlaps)) return code;
    const uint64_t all = threads * c.gx * c.gy * c.gz;
    int code = s->push(k, [=] {
        if (sticky[device] != OK) return; // an earlier node of the graph failed
        unsigned grid[3] = {c.gx, c.gy, c.gz}, block[3] = {c.bx, c.by, c.bz};
        std::lock_guard<std::mutex> l(shim_lock); // one launch at a time, so that `waited` counts its own threads
        const char *problem = k->library->shim(k->call, args->data(), grid, block, c.shared, 0);
        if (!problem && overlaps && (!k->library->waited || *k->library->waited != all))
            problem = "it may overlap the kernel before, and not all threads waited for that";
        if (overlaps) count("overlapping kernels");
        if (problem) {
            fprintf(stderr, "fake libcuda: %s: %s\n", k->name.c_str(), problem);
            sticky[device] = ILLEGAL_ADDRESS;
        }
        count("kernels");
    });
    s->after_kernel = code == OK;
    return code;
}
EXPORT int cuLaunchKernel(void *k, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **params, void **extra)
{
    LaunchConfig c{gx, gy, gz, bx, by, bz, shared, stream, nullptr, 0};
    return cuLaunchKernelEx(&c, k, params, extra);
}
