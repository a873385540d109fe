// opt_step_adamw and opt_step_sgd: one step of an optimizer, in place. A thread for each element.
// computes: opt_step_adamw by opt_step_adamw of 5 operands, for each element
// computes: opt_step_sgd by opt_step_sgd of 3 operands, for each element
#include "common.cuh"

DEV float setting(const Tensor &t, int i)
{
    return f32_at(t.data + i * t.nb[0]);
}

// src: a, gradient, m, v, [alpha, beta1, beta2, eps, wd, 1 / (1 - beta1^t), 1 / (1 - beta2^t)]
KERNEL(opt_step_adamw, 256, Node<5>)
{
    const Tensor &s = n.src[4];
    const float alpha = setting(s, 0), beta1 = setting(s, 1), beta2 = setting(s, 2), eps = setting(s, 3);
    const float keep = 1.0f - alpha * setting(s, 4), up1 = setting(s, 5), up2 = setting(s, 6);
    const i64 all = count(n.dst);
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const Index i = element_index(n.dst, e);
        float *w = (float *)(n.dst.data + at(n.dst, i));
        const float g = f32_at(n.src[1].data + at(n.src[1], i));
        float *m = (float *)(n.src[2].data + at(n.src[2], i)), *v = (float *)(n.src[3].data + at(n.src[3], i));
        const float m1 = *m * beta1 + g * (1.0f - beta1), v1 = *v * beta2 + g * g * (1.0f - beta2);
        *m = m1;
        *v = v1;
        *w = *w * keep - alpha * (m1 * up1) / (sqrtf(v1 * up2) + eps);
    }
}

// src: a, gradient, [alpha, wd]
KERNEL(opt_step_sgd, 256, Node<3>)
{
    const float alpha = setting(n.src[2], 0), keep = 1.0f - alpha * setting(n.src[2], 1);
    const i64 all = count(n.dst);
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const Index i = element_index(n.dst, e);
        float *w = (float *)(n.dst.data + at(n.dst, i));
        *w = *w * keep - alpha * f32_at(n.src[1].data + at(n.src[1], i));
    }
}
