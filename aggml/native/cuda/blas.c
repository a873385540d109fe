/* Products of large matrices by cuBLASLt. The issuing thread loads the library when a plan first needs it.
 *
 * The library counts in column-major order: d (m x n, f32) = a^T (k x m) * b (k x n). Each matrix has a stride between
 * its columns. A batch of such products has a constant stride per matrix; the stride of a may be 0. The algorithm is
 * the first that the library proposes. It is kept per shape, so that a shape is computed alike each time. The workspace
 * is part of the plan's scratch: nothing is allocated here, and a captured product stays valid. A missing library or
 * algorithm is no error: the plan also has kernels that compute the same product. Not here: which products
 * (devices/cuda/kernels/blas.py). */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "blas.h"

/* Signatures and numbers of cuBLASLt 13; every status is an int, every handle a pointer. */
#define ENTRIES(X) \
    X(cublasLtCreate, (void **handle)) \
    X(cublasLtMatmulDescCreate, (void **desc, int compute, int scale)) \
    X(cublasLtMatmulDescSetAttribute, (void *desc, int attribute, const void *value, size_t size)) \
    X(cublasLtMatmulDescDestroy, (void *desc)) \
    X(cublasLtMatrixLayoutCreate, (void **layout, int type, uint64_t rows, uint64_t columns, int64_t ld)) \
    X(cublasLtMatrixLayoutSetAttribute, (void *layout, int attribute, const void *value, size_t size)) \
    X(cublasLtMatrixLayoutDestroy, (void *layout)) \
    X(cublasLtMatmulPreferenceCreate, (void **preference)) \
    X(cublasLtMatmulPreferenceSetAttribute, (void *preference, int attribute, const void *value, size_t size)) \
    X(cublasLtMatmulPreferenceDestroy, (void *preference)) \
    X(cublasLtMatmulAlgoGetHeuristic, (void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference, \
                                       int wanted, result *results, int *n)) \
    X(cublasLtMatmul, (void *handle, void *desc, const void *alpha, const void *a, void *a_layout, const void *b, \
                       void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout, \
                       const void *algo, void *workspace, size_t size, void *stream))

typedef struct result { /* cublasLtMatmulHeuristicResult_t */
    uint64_t algo[8];
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
} result;

enum { OK = 0, ALLOC_FAILED = 3, NOT_SUPPORTED = 15 };
enum { COMPUTE_32F = 68, COMPUTE_32F_FAST_TF32 = 77, R_32F = 0, R_16F = 2, R_16BF = 14, OP_T = 1 };
enum { DESC_TRANSA = 3, LAYOUT_BATCH_COUNT = 5, LAYOUT_BATCH_OFFSET = 6 };
enum { PREFERENCE_WORKSPACE = 1, PREFERENCE_ALIGNMENT = 5 }; /* of a; then b, c and d */

typedef struct entries {
#define X(name, arguments) int(*name) arguments;
    ENTRIES(X)
#undef X
} entries;

struct ag_cuda_blas_shape {
    ag_cuda_blas_shape *next;
    ag_cuda_gemm key; /* addresses are 0 */
    void *desc, *a, *b, *d;
    result best;
    bool usable;
};

struct ag_cuda_blas {
    pthread_mutex_t lock; /* held while the library is loaded or called, by issuing threads, which may wait */
    char *path;
    bool tried;
    char problem[200]; /* why the library is not used; empty if it is used or was not tried */
    entries entry;
    void *handle;
    ag_cuda_blas_shape *shapes;
};

ag_cuda_blas *ag_cuda_blas_new(const char *path)
{
    ag_cuda_blas *blas = calloc(1, sizeof *blas);
    if (blas == NULL) return NULL;
    blas->path = strdup(path);
    if (blas->path == NULL) {
        free(blas);
        return NULL;
    }
    pthread_mutex_init(&blas->lock, NULL);
    return blas;
}

static void drop_shape(const entries *entry, ag_cuda_blas_shape *shape)
{
    if (shape->desc != NULL) (void)entry->cublasLtMatmulDescDestroy(shape->desc);
    void *layouts[] = {shape->a, shape->b, shape->d};
    for (int i = 0; i < 3; ++i) {
        if (layouts[i] != NULL) (void)entry->cublasLtMatrixLayoutDestroy(layouts[i]);
    }
    free(shape);
}

/* The library's handle is not destroyed, as the device's context is not: destroying it would wait for the device. */
void ag_cuda_blas_free(ag_cuda_blas *blas)
{
    if (blas == NULL) return;
    while (blas->shapes != NULL) {
        ag_cuda_blas_shape *next = blas->shapes->next;
        drop_shape(&blas->entry, blas->shapes);
        blas->shapes = next;
    }
    pthread_mutex_destroy(&blas->lock);
    free(blas->path);
    free(blas);
}

bool ag_cuda_blas_problem(ag_cuda_blas *blas, char *text, size_t size)
{
    pthread_mutex_lock(&blas->lock);
    snprintf(text, size, "%s", blas->problem);
    bool tried = blas->tried;
    pthread_mutex_unlock(&blas->lock);
    return tried;
}

const char *ag_cuda_blas_status(int status)
{
    switch (status) {
    case 1: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case 7: return "CUBLAS_STATUS_INVALID_VALUE";
    case 8: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case 11: return "CUBLAS_STATUS_MAPPING_ERROR";
    case 13: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case 14: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case 16: return "CUBLAS_STATUS_LICENSE_ERROR";
    default: return "an unknown status";
    }
}

ag_code ag_cuda_blas_code(int status)
{
    return status == ALLOC_FAILED ? AG_NO_MEMORY : status == NOT_SUPPORTED ? AG_UNSUPPORTED : AG_DEVICE_ERROR;
}

/* -- the library: the lock is held, the device's context is current ----------------------------------------------- */

static bool find(void *library, const char *name, void *entry)
{
    void *address = dlsym(library, name);
    memcpy(entry, &address, sizeof address); /* C has no conversion to a function */
    return address != NULL;
}

static bool load(ag_cuda_blas *blas)
{
    if (blas->tried) return blas->handle != NULL;
    blas->tried = true;
    void *library = dlopen(blas->path, RTLD_NOW | RTLD_LOCAL); /* never unloaded: its threads may run until the end */
    if (library == NULL) {
        const char *why = dlerror();
        snprintf(blas->problem, sizeof blas->problem, "cannot be loaded: %.150s", why != NULL ? why : blas->path);
        return false;
    }
    const char *lacking = NULL;
#define X(name, arguments) \
    if (!find(library, #name, &blas->entry.name)) lacking = #name;
    ENTRIES(X)
#undef X
    int status = lacking == NULL ? blas->entry.cublasLtCreate(&blas->handle) : OK;
    if (lacking != NULL) {
        snprintf(blas->problem, sizeof blas->problem, "has no %s", lacking);
    } else if (status != OK) {
        snprintf(blas->problem, sizeof blas->problem, "cublasLtCreate: %s (%d)", ag_cuda_blas_status(status), status);
    }
    if (blas->problem[0] != 0) blas->handle = NULL;
    return blas->handle != NULL;
}

static int layout(const entries *entry, void **out, int type, int64_t rows, int64_t columns, int64_t ld, int64_t count,
                  int64_t stride)
{
    int status = entry->cublasLtMatrixLayoutCreate(out, type, (uint64_t)rows, (uint64_t)columns, ld);
    if (status != OK) *out = NULL;
    if (status != OK || count == 1) return status;
    int32_t n = (int32_t)count;
    status = entry->cublasLtMatrixLayoutSetAttribute(*out, LAYOUT_BATCH_COUNT, &n, sizeof n);
    if (status != OK) return status;
    return entry->cublasLtMatrixLayoutSetAttribute(*out, LAYOUT_BATCH_OFFSET, &stride, sizeof stride);
}

static int describe(const entries *entry, ag_cuda_blas_shape *shape)
{
    const ag_cuda_gemm *g = &shape->key;
    static const int types[] = {R_32F, R_16F, R_16BF, R_32F};
    int type = types[g->type], compute = g->type == 3 ? COMPUTE_32F_FAST_TF32 : COMPUTE_32F;
    int32_t transposed = OP_T;
    int status = entry->cublasLtMatmulDescCreate(&shape->desc, compute, R_32F);
    if (status != OK) shape->desc = NULL;
    if (status == OK)
        status = entry->cublasLtMatmulDescSetAttribute(shape->desc, DESC_TRANSA, &transposed, sizeof transposed);
    if (status == OK) status = layout(entry, &shape->a, type, g->k, g->m, g->a_ld, g->count, g->a_stride);
    if (status == OK) status = layout(entry, &shape->b, type, g->k, g->n, g->b_ld, g->count, g->b_stride);
    if (status == OK) status = layout(entry, &shape->d, R_32F, g->m, g->n, g->d_ld, g->count, g->d_stride);
    return status;
}

static int choose(ag_cuda_blas *blas, ag_cuda_blas_shape *shape)
{
    const entries *entry = &blas->entry;
    const ag_cuda_gemm *g = &shape->key;
    void *preference = NULL;
    uint64_t workspace = (uint64_t)g->workspace_size;
    int status = entry->cublasLtMatmulPreferenceCreate(&preference);
    if (status != OK) return status;
    status =
        entry->cublasLtMatmulPreferenceSetAttribute(preference, PREFERENCE_WORKSPACE, &workspace, sizeof workspace);
    const int64_t alignments[] = {g->a_align, g->b_align, g->d_align, g->d_align};
    for (int i = 0; i < 4 && status == OK; ++i) {
        uint32_t bytes = (uint32_t)alignments[i];
        status =
            entry->cublasLtMatmulPreferenceSetAttribute(preference, PREFERENCE_ALIGNMENT + i, &bytes, sizeof bytes);
    }
    int n = 0;
    if (status == OK) {
        status = entry->cublasLtMatmulAlgoGetHeuristic(blas->handle, shape->desc, shape->a, shape->b, shape->d,
                                                       shape->d, preference, 1, &shape->best, &n);
        if (status == OK && n > 0) status = shape->best.status;
        shape->usable = status == OK && n > 0 && shape->best.workspace <= workspace;
        if (status == NOT_SUPPORTED) status = OK; /* then kernels compute the product */
    }
    (void)entry->cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

int ag_cuda_blas_shape_of(ag_cuda_blas *blas, const ag_cuda_gemm *gemm, ag_cuda_blas_shape **out)
{
    ag_cuda_gemm key = *gemm;
    key.a = key.b = key.d = key.workspace = 0;
    *out = NULL;
    pthread_mutex_lock(&blas->lock);
    int status = OK;
    ag_cuda_blas_shape *shape = load(blas) ? blas->shapes : NULL;
    while (shape != NULL && memcmp(&shape->key, &key, sizeof key) != 0) shape = shape->next;
    if (shape == NULL && blas->handle != NULL) {
        shape = calloc(1, sizeof *shape);
        status = shape != NULL ? OK : ALLOC_FAILED;
        if (shape != NULL) {
            shape->key = key;
            status = describe(&blas->entry, shape);
            if (status == OK) status = choose(blas, shape);
            if (status == OK) {
                shape->next = blas->shapes;
                blas->shapes = shape;
            } else {
                drop_shape(&blas->entry, shape);
                shape = NULL;
            }
        }
    }
    pthread_mutex_unlock(&blas->lock);
    if (shape != NULL && shape->usable) *out = shape;
    return status;
}

int ag_cuda_blas_multiply(ag_cuda_blas *blas, const ag_cuda_blas_shape *shape, const void *gemm, void *stream)
{
    static const float one = 1.0f, zero = 0.0f;
    ag_cuda_gemm g;
    memcpy(&g, gemm, sizeof g);
    void *d = (void *)(uintptr_t)g.d, *workspace = shape->best.workspace > 0 ? (void *)(uintptr_t)g.workspace : NULL;
    return blas->entry.cublasLtMatmul(blas->handle, shape->desc, &one, (const void *)(uintptr_t)g.a, shape->a,
                                      (const void *)(uintptr_t)g.b, shape->b, &zero, d, shape->d, d, shape->d,
                                      shape->best.algo, workspace, shape->best.workspace, stream);
}
