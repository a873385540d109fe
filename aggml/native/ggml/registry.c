/* The registry of a library: its files of backends, servers, and which devices these bring.
 *
 * Not here: the functions of a library (library.c), a device (device.c). */
#include <dlfcn.h>
#include <stdio.h>

#include "lost.h"
#include "state.h"

ag_ggml_library *ag_ggml_open(const char *base, const char *registry, char *message)
{
    ag_ggml_library *library = ag_ggml_library_open(base, registry, message);
    if (library != NULL) ag_ggml_guard(library, ag_ggml_stranded);
    return library;
}

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

static void add_devices(ag_ggml_library *library, ag_ggml_handle *registry)
{
    const ag_ggml_functions *f = &library->f;
    size_t n = f->ggml_backend_reg_dev_count(registry);
    for (size_t k = 0; k < n; ++k) ag_ggml_device_add(library, f->ggml_backend_reg_dev_get(registry, k));
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
    ag_ggml_device_add(l->library, l->one);
}

static bool add_all(ag_ggml_library *library, ag_ggml_handle *registry, char *message)
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
        if (!ag_ggml_uses(library, handle)) {
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
        loading l = {library, file, NULL, NULL};
        if (!ag_ggml_guarded(NULL, load_file, &l, message)) return false;
        if (l.found == NULL) {
            snprintf(message, AG_GGML_MESSAGE,
                     "ggml does not take it: made for another version of its interface, or for "
                     "another processor");
            return false;
        }
        return add_all(library, l.found, message);
    }
    for (size_t k = 0; k < library->f.ggml_backend_reg_count(); ++k) { /* the backends that are linked into libggml */
        if (!add_all(library, library->f.ggml_backend_reg_get(k), message)) return false;
    }
    return true;
}

bool ag_ggml_add_server(ag_ggml_library *library, const char *endpoint, char *message)
{
    loading l = {library, endpoint, NULL, NULL};
    if (!ag_ggml_guarded(NULL, load_server, &l, message)) return false;
    if (l.one != NULL) return ag_ggml_guarded(NULL, add_one, &l, message);
    if (l.found == NULL) {
        snprintf(message, AG_GGML_MESSAGE, "the server at %s has no devices, or no RPC backend is loaded", endpoint);
        return false;
    }
    return add_all(library, l.found, message);
}

size_t ag_ggml_family_count(ag_ggml_library *library)
{
    return library->f.ggml_backend_reg_count();
}

const char *ag_ggml_family(ag_ggml_library *library, size_t index)
{
    return library->f.ggml_backend_reg_name(library->f.ggml_backend_reg_get(index));
}
