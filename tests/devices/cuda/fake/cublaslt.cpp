// A libcublasLt.so.13 that multiplies on the host, in the streams of the fake driver.
//
// It checks handles as far as the real library does: sizes of attributes, layouts that fit each other, a workspace of
// the announced size. Functions fake_blas_* are for tests.
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "entries.h"

enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { R_32F = 0, R_16F = 2, R_16BF = 14, COMPUTE_32F = 68, COMPUTE_TF32 = 77 };

static std::atomic<size_t> wants{1 << 20}; // bytes of workspace that the algorithm needs

#define ENTER(name)                                                                                                    \
    if (int entered = enter(name)) return entered

struct Desc {
    int compute, scale;
    int32_t trans_a = 0, trans_b = 0;
};
struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t ld;
    int32_t count = 1;
    int64_t offset = 0;
};
struct Preference {
    uint64_t workspace = 0;
    uint32_t align[4] = {256, 256, 256, 256};
};
struct Result {
    uint64_t algo[8];
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
};

template <class T> static int assign(T *to, const void *value, size_t size)
{
    if (size != sizeof *to) return INVALID_VALUE;
    memcpy(to, value, size);
    return SUCCESS;
}

EXPORT int cublasLtCreate(void **handle)
{
    ENTER("cublasLtCreate");
    typedef int Current(void **);
    auto *current = reinterpret_cast<Current *>(dlsym(RTLD_DEFAULT, "cuCtxGetCurrent"));
    void *context = nullptr;
    if (!current || current(&context) != 0 || !context) return NOT_INITIALIZED;
    *handle = new int(1);
    return SUCCESS;
}
EXPORT int cublasLtMatmulDescCreate(void **desc, int compute, int scale)
{
    ENTER("cublasLtMatmulDescCreate");
    *desc = new Desc{compute, scale};
    return SUCCESS;
}
EXPORT int cublasLtMatmulDescSetAttribute(void *desc, int attribute, const void *value, size_t size)
{
    ENTER("cublasLtMatmulDescSetAttribute");
    auto *d = static_cast<Desc *>(desc);
    return attribute == 3 ? assign(&d->trans_a, value, size) : attribute == 4 ? assign(&d->trans_b, value, size) : 7;
}
EXPORT int cublasLtMatmulDescDestroy(void *desc)
{
    delete static_cast<Desc *>(desc);
    return SUCCESS;
}
EXPORT int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t ld)
{
    ENTER("cublasLtMatrixLayoutCreate");
    if (rows == 0 || columns == 0 || ld < static_cast<int64_t>(rows)) return INVALID_VALUE;
    *layout = new Layout{type, rows, columns, ld};
    return SUCCESS;
}
EXPORT int cublasLtMatrixLayoutSetAttribute(void *layout, int attribute, const void *value, size_t size)
{
    ENTER("cublasLtMatrixLayoutSetAttribute");
    auto *l = static_cast<Layout *>(layout);
    return attribute == 5 ? assign(&l->count, value, size) : attribute == 6 ? assign(&l->offset, value, size) : 7;
}
EXPORT int cublasLtMatrixLayoutDestroy(void *layout)
{
    delete static_cast<Layout *>(layout);
    return SUCCESS;
}
EXPORT int cublasLtMatmulPreferenceCreate(void **preference)
{
    ENTER("cublasLtMatmulPreferenceCreate");
    *preference = new Preference;
    return SUCCESS;
}
EXPORT int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t size)
{
    ENTER("cublasLtMatmulPreferenceSetAttribute");
    auto *p = static_cast<Preference *>(preference);
    if (attribute == 1) return assign(&p->workspace, value, size);
    return attribute >= 5 && attribute <= 8 ? assign(&p->align[attribute - 5], value, size) : INVALID_VALUE;
}
EXPORT int cublasLtMatmulPreferenceDestroy(void *preference)
{
    delete static_cast<Preference *>(preference);
    return SUCCESS;
}

static size_t size_of(int type)
{
    return type == R_32F ? 4 : 2;
}

static bool fit(const Desc *o, const Layout *a, const Layout *b, const Layout *d)
{
    uint64_t k = o->trans_a ? a->rows : a->columns, m = o->trans_a ? a->columns : a->rows;
    uint64_t kb = o->trans_b ? b->columns : b->rows, n = o->trans_b ? b->rows : b->columns;
    bool computes = o->compute == COMPUTE_32F || (o->compute == COMPUTE_TF32 && a->type == R_32F);
    return computes && o->scale == R_32F && k == kb && d->rows == m && d->columns == n &&
           a->type == b->type && d->type == R_32F && a->count == b->count && a->count == d->count;
}

EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d,
                                          void *preference, int wanted, Result *results, int *n)
{
    ENTER("cublasLtMatmulAlgoGetHeuristic");
    auto *p = static_cast<Preference *>(preference);
    *n = 0;
    if (!handle || wanted != 1 || c != d) return INVALID_VALUE;
    if (!fit(static_cast<Desc *>(desc), static_cast<Layout *>(a), static_cast<Layout *>(b), static_cast<Layout *>(d)))
        return INVALID_VALUE;
    for (uint32_t align : p->align) {
        if (align == 0 || (align & (align - 1)) || align > 256) return INVALID_VALUE;
    }
    if (wants > p->workspace) return NOT_SUPPORTED;
    memset(results, 0, sizeof *results);
    results->algo[0] = 0xb1a5;
    results->algo[1] =
        p->align[0] | static_cast<uint64_t>(p->align[1]) << 16 | static_cast<uint64_t>(p->align[3]) << 32;
    results->workspace = wants;
    *n = 1;
    return SUCCESS;
}

static float cut(float x) // rounds to the 10 bits of mantissa of TF32, to the nearest
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits = (bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu;
    memcpy(&x, &bits, 4);
    return x;
}

static float element(const void *p, int type, int64_t i, bool tf32)
{
    if (type == R_32F) return tf32 ? cut(static_cast<const float *>(p)[i]) : static_cast<const float *>(p)[i];
    uint16_t bits = static_cast<const uint16_t *>(p)[i];
    if (type == R_16F) {
        _Float16 half;
        memcpy(&half, &bits, 2);
        return static_cast<float>(half);
    }
    uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float out;
    memcpy(&out, &wide, 4);
    return out;
}

struct Job {
    Desc desc;
    Layout a, b, d;
    const char *a_data, *b_data;
    char *d_data, *workspace;
    size_t workspace_size;
};

static void multiply(void *data)
{
    const Job &j = *static_cast<Job *>(data); // not freed: a captured job runs again
    if (j.workspace_size) memset(j.workspace, 0xee, j.workspace_size);
    int64_t k = static_cast<int64_t>(j.desc.trans_a ? j.a.rows : j.a.columns);
    const bool tf32 = j.desc.compute == COMPUTE_TF32;
    for (int64_t batch = 0; batch < j.d.count; ++batch) {
        const char *a = j.a_data + batch * j.a.offset * static_cast<int64_t>(size_of(j.a.type));
        const char *b = j.b_data + batch * j.b.offset * static_cast<int64_t>(size_of(j.b.type));
        float *d = reinterpret_cast<float *>(j.d_data) + batch * j.d.offset;
        for (int64_t column = 0; column < static_cast<int64_t>(j.d.columns); ++column) {
            for (int64_t row = 0; row < static_cast<int64_t>(j.d.rows); ++row) {
                float sum[8] = {0};
                for (int64_t i = 0; i < k; ++i) {
                    int64_t at_a = j.desc.trans_a ? row * j.a.ld + i : i * j.a.ld + row;
                    int64_t at_b = j.desc.trans_b ? i * j.b.ld + column : column * j.b.ld + i;
                    sum[i % 8] += element(a, j.a.type, at_a, tf32) * element(b, j.b.type, at_b, tf32);
                }
                d[column * j.d.ld + row] =
                    ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
            }
        }
    }
}

EXPORT int cublasLtMatmul(void *handle, void *desc, const void *alpha, const void *a, void *a_layout, const void *b,
                          void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                          const uint64_t *algo, void *workspace, size_t workspace_size, void *stream)
{
    ENTER("cublasLtMatmul");
    Job j{*static_cast<Desc *>(desc), *static_cast<Layout *>(a_layout), *static_cast<Layout *>(b_layout),
          *static_cast<Layout *>(d_layout), static_cast<const char *>(a), static_cast<const char *>(b),
          static_cast<char *>(d), static_cast<char *>(workspace), workspace_size};
    auto off = [](const void *p, uint64_t by) { return by == 0 || reinterpret_cast<uintptr_t>(p) % by != 0; };
    if (!handle || *static_cast<const float *>(alpha) != 1.0f || *static_cast<const float *>(beta) != 0.0f || c != d ||
        c_layout != d_layout || !fit(&j.desc, &j.a, &j.b, &j.d) || algo[0] != 0xb1a5 || workspace_size != wants ||
        (workspace_size && !workspace) || off(a, algo[1] & 0xffff) || off(b, algo[1] >> 16 & 0xffff) ||
        off(d, algo[1] >> 32))
        return INVALID_VALUE;
    auto *host = reinterpret_cast<char *(*)(uint64_t)>(dlsym(RTLD_DEFAULT, "fake_host"));
    j.a_data = host(reinterpret_cast<uint64_t>(a)), j.b_data = host(reinterpret_cast<uint64_t>(b));
    j.d_data = host(reinterpret_cast<uint64_t>(d)), j.workspace = host(reinterpret_cast<uint64_t>(workspace));
    typedef int HostFunc(void *, void (*)(void *), void *);
    auto *push = reinterpret_cast<HostFunc *>(dlsym(RTLD_DEFAULT, "cuLaunchHostFunc"));
    return push && push(stream, multiply, new Job(j)) == 0 ? SUCCESS : 13;
}

EXPORT void fake_blas_fail(const char *entry, int status)
{
    fail_next(entry, status);
}
EXPORT void fake_blas_wants(size_t bytes)
{
    wants = bytes;
}
EXPORT long fake_blas_calls(const char *entry)
{
    return calls_of(entry);
}
