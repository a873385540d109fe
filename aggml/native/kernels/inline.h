/* AGK_INLINE, AGK_UNROLL: functions and loops that exist once in the source and once per constant in the code.
 *
 * In builds under a sanitizer (AGK_NO_UNROLL) they are ordinary functions and loops, which access the same memory in
 * the same order. With the sanitizer's checks in every copy, kernels/avx512/mul_mat_dots_32.c alone took over 5
 * minutes to compile; now it takes 1 second. */
#ifndef AGK_INLINE_H
#define AGK_INLINE_H

#ifdef AGK_NO_UNROLL
#define AGK_INLINE static __attribute__((noinline, unused))
#define AGK_UNROLL
#else
#define AGK_INLINE static inline __attribute__((always_inline))
#define AGK_UNROLL _Pragma("GCC unroll 32")
#endif

#endif
