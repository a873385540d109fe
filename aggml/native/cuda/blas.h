/* cuBLASLt as plans use it, see blas.c. Only issuing threads call these functions, except those that make and free. */
#ifndef AG_CUDA_BLAS_H
#define AG_CUDA_BLAS_H

#include "runtime/runtime.h"

typedef struct ag_cuda_blas ag_cuda_blas;
typedef struct ag_cuda_blas_shape ag_cuda_blas_shape;

typedef struct ag_cuda_gemm { /* as devices/cuda/kernels/blas.py packs it: 64-bit words without gaps */
    uint64_t a, b, d, workspace;
    int64_t workspace_size;
    int64_t type; /* of a and b: 0 f32, 1 f16, 2 bf16, 3 f32 by TF32 */
    int64_t m, n, k;
    int64_t a_ld, b_ld, d_ld; /* elements */
    int64_t count, a_stride, b_stride, d_stride;
    int64_t a_align, b_align, d_align; /* alignment of the addresses, in bytes */
} ag_cuda_gemm;

ag_cuda_blas *ag_cuda_blas_new(const char *path); /* loads nothing */
void ag_cuda_blas_free(ag_cuda_blas *blas);
/* Why the library is not used, empty if it is; false: nothing has needed it yet. */
bool ag_cuda_blas_problem(ag_cuda_blas *blas, char *text, size_t size);
const char *ag_cuda_blas_status(int status);
ag_code ag_cuda_blas_code(int status);

/* Returns a status; `out` is NULL where kernels have to compute the product. The shape lives as long as `blas`. */
int ag_cuda_blas_shape_of(ag_cuda_blas *blas, const ag_cuda_gemm *gemm, ag_cuda_blas_shape **out);
int ag_cuda_blas_multiply(ag_cuda_blas *blas, const ag_cuda_blas_shape *shape, const void *gemm, void *stream);

#endif
