/* Libraries of ggml: loading, the table of functions, element types by name, the devices of the registry.
 *
 * A process can have one ggml only: backends find libggml-base by its name, not by its path, so the backends of a
 * second build would work on the first one's structs. Such a library is refused. Not here: the work of devices
 * (device.c). */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "lost.h"
#include "state.h"
#include "table/types.h"

static pthread_mutex_t *const all_lock = &ag_locks[AG_LOCK_GGML];
static ag_ggml_library *all;

static bool real_path(const char *path, char *out)
{
    char *found = realpath(path, NULL);
    if (found == NULL) return false;
    snprintf(out, 512, "%s", found);
    free(found);
    return true;
}

static bool lies_in(void *symbol, const char *path)
{
    Dl_info info;
    char file[512];
    return dladdr(symbol, &info) != 0 && real_path(info.dli_fname, file) && strcmp(file, path) == 0;
}

static void *find(ag_ggml_library *library, const char *name)
{
    void *symbol = dlsym(library->base, name);
    return symbol != NULL || library->registry == NULL ? symbol : dlsym(library->registry, name);
}

static bool fill_in(ag_ggml_library *library, char *message)
{
    static const struct {
        const char *name;
        size_t at;
        bool needed;
    } entries[] = {
#define AG_GGML(returns, name, parameters) {#name, offsetof(ag_ggml_functions, name), true},
#define AG_GGML_MAY(returns, name, parameters) {#name, offsetof(ag_ggml_functions, name), false},
#include "functions.def"
    };
    size_t used = 0, lacking = 0;
    for (size_t k = 0; k < sizeof entries / sizeof *entries; ++k) {
        void *symbol = find(library, entries[k].name);
        memcpy((char *)&library->f + entries[k].at, &symbol, sizeof symbol);
        if (symbol != NULL || !entries[k].needed) continue;
        if (lacking++ < 4 && used < AG_GGML_MESSAGE)
            used += (size_t)snprintf(message + used, AG_GGML_MESSAGE - used, "%s%s", used ? ", " : "it lacks ",
                                     entries[k].name);
    }
    return lacking == 0;
}

static bool named(const char *told, const char *name)
{
    return told != NULL && strcmp(told, name) == 0;
}

/* Types by number, size and name. Numbers are those of files and do not change. An older library has a shorter table:
 * before November 2025 only its ggml_type_name checks the number, later no function may. So the first is asked for the
 * name before the sizes, the second for the name only where the sizes are right. */
static bool knows_type(const ag_ggml_library *library, int type)
{
    const ag_ggml_functions *f = &library->f;
    const agk_type_traits *traits = agk_traits(type);
    bool by_name = f->ggml_cumsum == NULL;
    if (traits->name == NULL) return false;
    if (by_name && !named(f->ggml_type_name(type), traits->name)) return false;
    if (f->ggml_blck_size(type) != traits->blck_size || f->ggml_type_size(type) != traits->type_size) return false;
    return named(f->ggml_type_name(type), traits->name);
}

static void map_types(ag_ggml_library *library)
{
    for (int type = 0; type < AG_GGML_TYPES; ++type) library->types[type] = knows_type(library, type) ? type : -1;
}

static bool open_files(ag_ggml_library *library, const char *registry, char *message)
{
    library->base = dlopen(library->path, RTLD_NOW | RTLD_LOCAL);
    if (library->base == NULL) {
        snprintf(message, AG_GGML_MESSAGE, "%s", dlerror());
        return false;
    }
    if (registry != NULL && (library->registry = dlopen(registry, RTLD_NOW | RTLD_LOCAL)) == NULL) {
        snprintf(message, AG_GGML_MESSAGE, "%s", dlerror());
        return false;
    }
    void *of_registry = library->registry == NULL ? NULL : dlsym(library->registry, "ggml_init");
    if (of_registry != NULL && !lies_in(of_registry, library->path)) {
        snprintf(message, AG_GGML_MESSAGE,
                 "another libggml-base is loaded in this process, and %s would use that: one "
                 "process has one ggml",
                 registry);
        return false;
    }
    return fill_in(library, message);
}

static ag_ggml_library *known(const char *path)
{
    ag_ggml_library *found = all;
    while (found != NULL && strcmp(found->path, path) != 0) found = found->next;
    return found;
}

static void forked(void)
{
    ag_ggml_buffers_forked();
    ag_ggml_queues_forked();
}

ag_ggml_library *ag_ggml_open(const char *base, const char *registry, char *message)
{
    char path[512];
    if (!real_path(base, path)) {
        snprintf(message, AG_GGML_MESSAGE, "there is no file %s", base);
        return NULL;
    }
    pthread_mutex_lock(all_lock);
    ag_ggml_library *found = known(path);
    pthread_mutex_unlock(all_lock);
    if (found != NULL) return found;
    ag_ggml_library *library = calloc(1, sizeof *library);
    if (library == NULL) {
        snprintf(message, AG_GGML_MESSAGE, "no memory");
        return NULL;
    }
    snprintf(library->path, sizeof library->path, "%s", path);
    if (!open_files(library, registry, message)) {
        free(library); /* loaded files stay loaded, because unloading libraries that start threads is not safe */
        return NULL;
    }
    map_types(library);
    ag_ggml_guard(library);
    pthread_mutex_lock(all_lock);
    library->next = all;
    all = library;
    ag_at_fork(AG_FORK_GGML, forked);
    pthread_mutex_unlock(all_lock);
    return library;
}

const char *ag_ggml_version(const ag_ggml_library *library)
{
    return library->f.ggml_version == NULL ? "" : library->f.ggml_version();
}

const char *ag_ggml_commit(const ag_ggml_library *library)
{
    return library->f.ggml_commit == NULL ? "" : library->f.ggml_commit();
}

bool ag_ggml_survives(const ag_ggml_library *library)
{
    return library->survives;
}

bool ag_ggml_has(const ag_ggml_library *library, const char *function)
{
    return dlsym(library->base, function) != NULL;
}

int ag_ggml_type(const ag_ggml_library *library, int type)
{
    return type < 0 || type >= AG_GGML_TYPES ? -1 : library->types[type];
}

/* -- backends and devices */

typedef struct loading {
    ag_ggml_library *library;
    const char *file;
    ag_ggml_handle *found; /* a registry */
    ag_ggml_handle *one;   /* a device without one of its own: of a server, in libraries before add_server */
} loading;

static void load_file(void *argument)
{
    loading *l = argument;
    l->found = l->library->f.ggml_backend_load(l->file);
}

static ag_ggml_handle *add_by(loading *l, const char *entry)
{
    const ag_ggml_functions *f = &l->library->f;
    for (size_t k = 0; k < f->ggml_backend_reg_count(); ++k) {
        ag_ggml_handle *(*add)(const char *) = NULL;
        void *symbol = f->ggml_backend_reg_get_proc_address(f->ggml_backend_reg_get(k), entry);
        if (symbol == NULL) continue;
        memcpy(&add, &symbol, sizeof add);
        return add(l->file);
    }
    return NULL;
}

static void load_server(void *argument)
{
    loading *l = argument;
    l->found = add_by(l, "ggml_backend_rpc_add_server");
    if (l->found == NULL) l->one = add_by(l, "ggml_backend_rpc_add_device");
}

static void add_device(ag_ggml_library *library, ag_ggml_handle *handle)
{
    for (size_t j = 0; j < library->n_devices; ++j) {
        if (library->devices[j]->handle == handle) return;
    }
    ag_ggml_device **grown = realloc(library->devices, (library->n_devices + 1) * sizeof *grown);
    if (grown == NULL) return;
    library->devices = grown;
    ag_ggml_device *device = ag_ggml_device_new(library, handle);
    if (device == NULL) return;
    pthread_mutex_lock(all_lock);
    library->devices[library->n_devices++] = device;
    pthread_mutex_unlock(all_lock);
}

static void add_devices(ag_ggml_library *library, ag_ggml_handle *registry)
{
    const ag_ggml_functions *f = &library->f;
    size_t n = f->ggml_backend_reg_dev_count(registry);
    for (size_t k = 0; k < n; ++k) add_device(library, f->ggml_backend_reg_dev_get(registry, k));
}

typedef struct adding {
    ag_ggml_library *library;
    ag_ggml_handle *registry;
} adding;

static void add_of(void *argument)
{
    adding *a = argument;
    add_devices(a->library, a->registry);
}

static void add_one(void *argument)
{
    loading *l = argument;
    add_device(l->library, l->one);
}

static bool add_guarded(ag_ggml_library *library, ag_ggml_handle *registry, char *message)
{
    adding a = {library, registry};
    return ag_ggml_guarded(NULL, add_of, &a, message);
}

bool ag_ggml_load(ag_ggml_library *library, const char *file, char *message)
{
    if (file != NULL) {
        void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
        if (handle == NULL) {
            snprintf(message, AG_GGML_MESSAGE, "%s", dlerror());
            return false;
        }
        void *used = dlsym(handle, "ggml_init");
        if (used != NULL && !lies_in(used, library->path)) {
            snprintf(message, AG_GGML_MESSAGE,
                     "another libggml-base is loaded in this process, and %s would use that: "
                     "one process has one ggml",
                     file);
            return false;
        }
        if (dlsym(handle, "ggml_backend_init") == NULL) {
            snprintf(message, AG_GGML_MESSAGE, "%s has no ggml_backend_init: it is no backend that can be loaded",
                     file);
            return false;
        }
        (void)ag_ggml_guard_calls(library, handle);
        loading l = {library, file, NULL, NULL};
        if (!ag_ggml_guarded(NULL, load_file, &l, message)) return false;
        if (l.found == NULL) {
            snprintf(message, AG_GGML_MESSAGE,
                     "ggml does not take it: made for another version of its interface, or for "
                     "another processor");
            return false;
        }
        return add_guarded(library, l.found, message);
    }
    for (size_t k = 0; k < library->f.ggml_backend_reg_count(); ++k) { /* the backends that are linked into libggml */
        if (!add_guarded(library, library->f.ggml_backend_reg_get(k), message)) return false;
    }
    return true;
}

bool ag_ggml_add_server(ag_ggml_library *library, const char *endpoint, char *message)
{
    if (!library->survives) {
        snprintf(message, AG_GGML_MESSAGE,
                 "this version of ggml ends the process when a connection is lost, and cannot be "
                 "told not to (it has no ggml_set_abort_callback, and its calls of ggml_abort cannot be redirected)");
        return false;
    }
    loading l = {library, endpoint, NULL, NULL};
    if (!ag_ggml_guarded(NULL, load_server, &l, message)) return false;
    if (l.one != NULL) return ag_ggml_guarded(NULL, add_one, &l, message);
    if (l.found == NULL) {
        snprintf(message, AG_GGML_MESSAGE, "the server at %s has no devices, or no RPC backend is loaded", endpoint);
        return false;
    }
    return add_guarded(library, l.found, message);
}

size_t ag_ggml_family_count(ag_ggml_library *library)
{
    return library->f.ggml_backend_reg_count();
}

const char *ag_ggml_family(ag_ggml_library *library, size_t index)
{
    return library->f.ggml_backend_reg_name(library->f.ggml_backend_reg_get(index));
}

size_t ag_ggml_device_count(ag_ggml_library *library)
{
    return library->n_devices;
}

ag_ggml_device *ag_ggml_device_get(ag_ggml_library *library, size_t index)
{
    return library->devices[index];
}

const ag_ggml_device *ag_ggml_cpu_of(ag_ggml_library *library)
{
    const ag_ggml_device *found = NULL;
    pthread_mutex_lock(all_lock);
    for (size_t k = 0; k < library->n_devices && found == NULL; ++k) {
        if (strcmp(library->devices[k]->facts.family, "CPU") == 0) found = library->devices[k];
    }
    pthread_mutex_unlock(all_lock);
    return found;
}

void ag_ggml_each_device(void (*visit)(ag_ggml_device *device, void *user), void *user)
{
    for (ag_ggml_library *library = all; library != NULL; library = library->next) { /* they stay */
        for (size_t k = 0; k < library->n_devices; ++k) visit(library->devices[k], user);
    }
}
