/* Libraries of ggml: loading, the table of functions, element types by name, the devices of the registry.
 *
 * A process can have one ggml only: backends find libggml-base by its name, not by its path, so the backends of a
 * second build would work on the first one's structs. Such a library is refused. Not here: the work of devices
 * (device.c). */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "state.h"
#include "table/types.h"

static pthread_mutex_t *const all_lock = &ag_locks[AG_LOCK_GGML];
static ag_ggml_library *all; /* they stay */

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

static bool is_named(const char *told, const char *name)
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
    if (by_name && !is_named(f->ggml_type_name(type), traits->name)) return false;
    if (f->ggml_blck_size(type) != traits->blck_size || f->ggml_type_size(type) != traits->type_size) return false;
    return is_named(f->ggml_type_name(type), traits->name);
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
    if (library->registry != NULL && !ag_ggml_uses(library, library->registry)) {
        snprintf(message, AG_GGML_MESSAGE,
                 "another libggml-base is loaded in this process, and %s would use that: one "
                 "process has one ggml",
                 registry);
        return false;
    }
    return fill_in(library, message);
}

static ag_ggml_library *find_open(const char *path)
{
    ag_ggml_library *found = all;
    while (found != NULL && strcmp(found->path, path) != 0) found = found->next;
    return found;
}

ag_ggml_library *ag_ggml_library_open(const char *base, const char *registry, char *message)
{
    char path[512];
    if (!real_path(base, path)) {
        snprintf(message, AG_GGML_MESSAGE, "there is no file %s", base);
        return NULL;
    }
    pthread_mutex_lock(all_lock);
    ag_ggml_library *found = find_open(path);
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
    pthread_mutex_lock(all_lock);
    library->next = all;
    all = library;
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

bool ag_ggml_has(const ag_ggml_library *library, const char *function)
{
    return dlsym(library->base, function) != NULL;
}

int ag_ggml_type(const ag_ggml_library *library, int type)
{
    return type < 0 || type >= AG_GGML_TYPES ? -1 : library->types[type];
}

ag_ggml_library *ag_ggml_libraries(void)
{
    return all;
}

bool ag_ggml_uses(const ag_ggml_library *library, void *handle)
{
    void *used = dlsym(handle, "ggml_init");
    return used == NULL || lies_in(used, library->path);
}
