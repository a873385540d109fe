/* Assertions of a library that has no ggml_set_abort_callback: its calls of ggml_abort are redirected to a function
 * here.
 *
 * A shared library calls a function that it exports through a slot, which the loader fills in. The slots named
 * ggml_abort are overwritten, in the libraries of one ggml only: another copy in this process keeps its own. Not
 * here: how an assertion is handled (guard.c). */
#include "redirect.h"

#ifdef __linux__

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The tables of a loaded library that name its slots. */
typedef struct image {
    uintptr_t base;
    const ElfW(Sym) * symbols;
    const char *names;
    const ElfW(Rela) * tables[2];
    size_t n[2];
} image;

static image read_image(const struct link_map *map)
{
    image out = {.base = map->l_addr};
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
        void *at = (void *)(uintptr_t)entry->d_un.d_ptr; /* glibc has added the base */
        if (entry->d_tag == DT_SYMTAB) out.symbols = at;
        if (entry->d_tag == DT_STRTAB) out.names = at;
        if (entry->d_tag == DT_RELA) out.tables[0] = at;
        if (entry->d_tag == DT_RELASZ) out.n[0] = entry->d_un.d_val / sizeof(ElfW(Rela));
        if (entry->d_tag == DT_JMPREL) out.tables[1] = at;
        if (entry->d_tag == DT_PLTRELSZ) out.n[1] = entry->d_un.d_val / sizeof(ElfW(Rela));
    }
    return out;
}

static bool fill(void **slot, void *function)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *from = (void *)((uintptr_t)slot & ~(page - 1));
    if (mprotect(from, page, PROT_READ | PROT_WRITE) != 0) return false; /* a slot does not cross pages */
    *slot = function;
    return true;
}

bool ag_ggml_redirect(void *handle, const char *name, void (*function)(void))
{
    struct link_map *map = NULL;
    void *target = NULL;
    size_t found = 0;
    memcpy(&target, &function, sizeof target);
    if (sizeof(ElfW(Addr)) != 8 || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == NULL) return false;
    image in = read_image(map);
    if (in.symbols == NULL || in.names == NULL) return false;
    for (int table = 0; table < 2; ++table) {
        for (size_t k = 0; in.tables[table] != NULL && k < in.n[table]; ++k) {
            const ElfW(Rela) *entry = &in.tables[table][k];
            size_t symbol = ELF64_R_SYM(entry->r_info);
            if (symbol == 0 || strcmp(in.names + in.symbols[symbol].st_name, name) != 0) continue;
            found += fill((void **)(in.base + entry->r_offset), target);
        }
    }
    return found > 0;
}

#else

bool ag_ggml_redirect(void *handle, const char *name, void (*function)(void))
{
    (void)handle;
    (void)name;
    (void)function;
    return false;
}

#endif
