/* How a lowering refuses a node: it returns a status and leaves a message with the values. */
#ifndef AGK_REFUSE_H
#define AGK_REFUSE_H

#include <stdarg.h>
#include <stdio.h>

#include "node.h"

__attribute__((format(printf, 3, 4))) static inline agk_status agk_refuse(agk_lowering *lowering, agk_status status,
                                                                          const char *format, ...)
{
    const int n = snprintf(lowering->message, AGK_MESSAGE, "[%s] ", agk_op_name(lowering->node->op));
    va_list arguments;
    va_start(arguments, format);
    if (n > 0 && n < AGK_MESSAGE) vsnprintf(lowering->message + n, (size_t)(AGK_MESSAGE - n), format, arguments);
    va_end(arguments);
    return status;
}

static inline const char *agk_type_name(int type)
{
    const char *name = agk_traits(type)->name;
    return name != NULL ? name : "an unknown type";
}

static inline bool agk_same_shape(const agk_view *a, const agk_view *b)
{
    return a->ne[0] == b->ne[0] && a->ne[1] == b->ne[1] && a->ne[2] == b->ne[2] && a->ne[3] == b->ne[3];
}

/* Refuses a result whose shape or type differs from those of `a`, as in all elementwise ops. */
static inline agk_status agk_expect_like(agk_lowering *lowering, const agk_view *dst, const agk_view *a)
{
    if (dst->type != a->type) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "the result is %s, a is %s", agk_type_name(dst->type),
                          agk_type_name(a->type));
    }
    if (!agk_same_shape(dst, a)) {
        return agk_refuse(lowering, AGK_INVALID, "the result has %lld elements in rows of %lld, a %lld in rows of %lld",
                          (long long)agk_nelements(dst), (long long)dst->ne[0], (long long)agk_nelements(a),
                          (long long)a->ne[0]);
    }
    return AGK_OK;
}

#endif
