// upscale: an image at another resolution: nearest, bilinear (also antialiased), bicubic. A thread for each pixel.
// options: --fmad=false
// computes: upscale by upscale of 1 operand, for each element
#include "common.cuh"

enum { NEAREST, BILINEAR, BICUBIC, MODES = 0xff, ALIGN_CORNERS = 1 << 8, ANTIALIAS = 1 << 9 };

struct Sampler {
    const char *plane;
    i64 ne[2], nb[2];
    float scale[4], offset;
};

DEV i64 clamped(i64 i, i64 n)
{
    return i < 0 ? 0 : i < n ? i : n - 1;
}

DEV float pixel(const Sampler &s, i64 i0, i64 i1)
{
    return f32_at(s.plane + clamped(i0, s.ne[0]) * s.nb[0] + clamped(i1, s.ne[1]) * s.nb[1]);
}

DEV float position(const Sampler &s, int d, i64 i)
{
    return ((float)i + s.offset) / s.scale[d] - s.offset;
}

DEV float share(float x, i64 first)
{
    return fminf(1.0f, fmaxf(0.0f, x - (float)first));
}

DEV float bilinear(const Sampler &s, i64 i0, i64 i1)
{
    const float x = position(s, 0, i0), y = position(s, 1, i1);
    const i64 x0 = (i64)floorf(x), y0 = (i64)floorf(y);
    const float dx = share(x, clamped(x0, s.ne[0])), dy = share(y, clamped(y0, s.ne[1]));
    return pixel(s, x0, y0) * (1.0f - dx) * (1.0f - dy) + pixel(s, x0 + 1, y0) * dx * (1.0f - dy) +
           pixel(s, x0, y0 + 1) * (1.0f - dx) * dy + pixel(s, x0 + 1, y0 + 1) * dx * dy;
}

// Keys' cubic with a = -0.75: the weight of pixel i of four, for a point dx after the second pixel.
DEV float cubic(float dx, int i)
{
    const float a = -0.75f, t = fabsf(dx + 1.0f - (float)i);
    return t <= 1.0f ? ((a + 2.0f) * t - (a + 3.0f)) * t * t + 1.0f
                     : ((a * t - 5.0f * a) * t + 8.0f * a) * t - 4.0f * a;
}

DEV float bicubic(const Sampler &s, i64 i0, i64 i1)
{
    const float x = position(s, 0, i0), y = position(s, 1, i1);
    const i64 x0 = (i64)floorf(x), y0 = (i64)floorf(y);
    float sum = 0.0f;
    for (int j = 0; j < 4; ++j) {
        float line = 0.0f;
        for (int i = 0; i < 4; ++i) line += pixel(s, x0 - 1 + i, y0 - 1 + j) * cubic(x - (float)x0, i);
        sum += line * cubic(y - (float)y0, j);
    }
    return sum;
}

struct Reach {
    float centre, width;
    i64 first, last;
};

DEV Reach reach_of(const Sampler &s, int d, i64 i)
{
    Reach r;
    r.centre = ((float)i + s.offset) / s.scale[d];
    r.width = fmaxf(1.0f, 1.0f / s.scale[d]);
    const i64 first = (i64)(r.centre - r.width + s.offset), last = (i64)(r.centre + r.width + s.offset);
    r.first = first < 0 ? 0 : first;
    r.last = last < s.ne[d] ? last : s.ne[d];
    return r;
}

DEV float triangle(const Sampler &s, const Reach &r, i64 i)
{
    return fmaxf(0.0f, 1.0f - fabsf(((float)i - r.centre + s.offset) / r.width));
}

DEV float filtered(const Sampler &s, i64 i0, i64 i1)
{
    const Reach x = reach_of(s, 0, i0), y = reach_of(s, 1, i1);
    float sum = 0.0f, weights = 0.0f;
    for (i64 j = y.first; j < y.last; ++j) {
        const float wy = triangle(s, y, j);
        for (i64 i = x.first; i < x.last; ++i) {
            const float w = triangle(s, x, i) * wy;
            sum += pixel(s, i, j) * w;
            weights += w;
        }
    }
    return weights > 0.0f ? sum / weights : sum;
}

KERNEL(upscale, 256, Node<1>)
{
    const Tensor &a = n.src[0], &y = n.dst;
    Sampler s;
    s.offset = n.p[0] & ALIGN_CORNERS ? 0.0f : 0.5f;
#pragma unroll
    for (int d = 0; d < 4; ++d) {
        s.scale[d] = (float)y.ne[d] / (float)a.ne[d];
        if (d >= 2) continue;
        s.ne[d] = a.ne[d];
        s.nb[d] = a.nb[d];
        if ((n.p[0] & ALIGN_CORNERS) && y.ne[d] > 1 && a.ne[d] > 1) {
            s.scale[d] = (float)(y.ne[d] - 1) / (float)(a.ne[d] - 1);
        }
    }
    const int mode = n.p[0] & MODES;
    const i64 all = count(y);
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const Index i = element_index(y, e);
        s.plane = a.data + clamped((i64)((float)i.i2 / s.scale[2]), a.ne[2]) * a.nb[2] +
                  clamped((i64)((float)i.i3 / s.scale[3]), a.ne[3]) * a.nb[3];
        float value;
        if (mode == NEAREST)
            value = pixel(s, (i64)((float)i.i0 / s.scale[0]), (i64)((float)i.i1 / s.scale[1]));
        else if (mode == BILINEAR)
            value = n.p[0] & ANTIALIAS ? filtered(s, i.i0, i.i1) : bilinear(s, i.i0, i.i1);
        else
            value = bicubic(s, i.i0, i.i1);
        *(float *)(y.data + at(y, i)) = value;
    }
}
