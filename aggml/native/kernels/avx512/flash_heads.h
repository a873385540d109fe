/* Shared by the kernels that compute all heads of a block together (amd512/flash_heads.c, zen5/flash_heads.c): the
 * types and numbers of rows that they have functions for, and how such a function is found.
 *
 * Not here: the functions, codes of quantized keys (flash_codes.h). */
#ifndef AGK_AVX512_FLASH_HEADS_H
#define AGK_AVX512_FLASH_HEADS_H

#include "flash_codes.h"

AGK_INLINE int64_t bytes_of(int type, int64_t n) /* of n numbers of a row, whole blocks */
{
    if (type == AGK_Q8_0) return n / V_BLOCK * (int64_t)sizeof(agk_block_q8_0);
    if (type == AGK_Q4_0) return n / V_BLOCK * (int64_t)sizeof(agk_block_q4_0);
    return 2 * n;
}

/* A pointer that the compiler takes as it is: it would keep 16 offsets instead of adding a step. */
AGK_INLINE const char *as_is(const char *at)
{
    __asm__("" : "+r"(at));
    return at;
}

#define AGK_EACH_TYPE(X, rows) X(f16, F16, rows) X(bf16, BF16, rows) X(q8_0, Q8_0, rows) X(q4_0, Q4_0, rows)
#define AGK_EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)

/* Defines keys_of and values_of, which find the functions keys_<type>_<rows> and values_<type>_<rows> of the includer;
 * NULL if there is none. */
#define AGK_KEYS_CASE(name, TYPE, rows) \
    case AGK_##TYPE * 16 + rows: return keys_##name##_##rows;
#define AGK_VALUES_CASE(name, TYPE, rows) \
    case AGK_##TYPE * 16 + rows: return values_##name##_##rows;
#define AGK_KEYS_CASES(rows) AGK_EACH_TYPE(AGK_KEYS_CASE, rows)
#define AGK_VALUES_CASES(rows) AGK_EACH_TYPE(AGK_VALUES_CASE, rows)
#define AGK_FIND_PART(part, function, CASES) \
    static function *part##_of(int type, int64_t rows) \
    { \
        switch (type * 16 + rows) { \
            AGK_EACH_ROWS(CASES) \
        default: return NULL; \
        } \
    }
#define AGK_FIND_PARTS(keys_function, values_function) \
    AGK_FIND_PART(keys, keys_function, AGK_KEYS_CASES) \
    AGK_FIND_PART(values, values_function, AGK_VALUES_CASES)

#endif
