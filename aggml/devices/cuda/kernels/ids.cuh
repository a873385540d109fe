// Rows named by indices: shared by get_rows, set_rows and similar ops.
#pragma once
#include "common.cuh"

DEV i64 id_at(const Tensor &ids, i64 i0, i64 i1, i64 i2)
{
    const char *p = ids.data + at(ids, i0, i1, i2, 0);
    return ids.type == I64 ? *(const i64 *)p : *(const int *)p;
}

// Where set_rows puts row i of `rows` in dst; 0 if a later row goes to the same place. All threads of a block call
// this.
DEV char *place_of(const Tensor &dst, const Tensor &ids, i64 rows, const Index &i)
{
    const i64 j1 = modulo(i.i2, ids.ne[1]), j2 = modulo(i.i3, ids.ne[2]), id = id_at(ids, i.i1, j1, j2);
    bool later = false;
    for (i64 j = i.i1 + 1 + threadIdx.x; j < rows; j += blockDim.x) later = later || id_at(ids, j, j1, j2) == id;
    if (__syncthreads_or(later)) return 0;
    return dst.data + id * dst.nb[1] + i.i2 * dst.nb[2] + i.i3 * dst.nb[3];
}
