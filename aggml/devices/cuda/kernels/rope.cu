// rope and rope_back: pairs of each row are turned by an angle that grows with the position; all modes, f32 and f16.
//
// A thread turns one pair in several heads of a token: the angle is computed in double, once for all of them. If a
// set_rows follows, the result can go straight to its rows. One launch may compute queries, keys and the rows of
// values.
#include "set_rows.cuh"

enum { N_DIMS = 1, MODE = 2, FREQ_SCALE = 6, EXT_FACTOR = 7, SECTIONS = 11, OFFSET = 15 };
enum { NEOX = 2, MROPE = 8, VISION = 24, IMROPE = 40 };

DEV double double_of(i64 bits)
{
#ifdef AGGML_HOST
    return shim_cooked<double>((uint64_t)bits);
#else
    return __longlong_as_double(bits);
#endif
}

// Which of the four positions of a token turns pair i, and the pair at which its section begins.
DEV int position_of(const int *p, i64 i, i64 *begin)
{
    const int *s = p + SECTIONS;
    const i64 round = (i64)s[0] + s[1] + s[2] + s[3], place = i % round, base = i - place;
    const i64 s1 = s[0], s2 = s1 + s[1], s3 = s2 + s[2];
    *begin = base + (place < s1 ? 0 : place < s2 ? s1 : place < s3 ? s2 : s3);
    if (p[MODE] == IMROPE) return place < 3 * (i64)s[place % 3] ? (int)(place % 3) : 3;
    return place < s1 ? 0 : place < s2 ? 1 : place < s3 ? 2 : 3;
}

// aux, as doubles: log2 of the factor from one frequency to the next, YaRN's low and high pair, magnitude.
// grid: pairs / 32, tokens and batches. block: 32 pairs, 8 heads. src: a, positions, factors. Node<4> also has ids: a
// token's heads go to the row that its id names.
template <class T, int N> DEV void turn(const Node<N> &n)
{
    const bool to_rows = N == 4;
    const Tensor &a = n.src[0], &b = n.src[1], &factors = n.src[2];
    const int *p = n.p;
    const bool multi = (p[MODE] & MROPE) != 0, vision = p[MODE] == VISION;
    const i64 dims = vision ? 2 * (i64)p[N_DIMS] : p[N_DIMS], half = dims / 2, offset = p[OFFSET];
    const i64 i = (i64)blockIdx.x * 32 + threadIdx.x, planes = a.ne[2] * a.ne[3];
    const i64 type = to_rows ? n.dst.type : sizeof(T) == 4 ? F32 : F16, size = type == F32 ? 4 : 2;
    const i64 head = to_rows ? a.ne[0] * size : n.dst.nb[1]; // bytes from one head to the next
    for (i64 plane = blockIdx.y; plane < planes; plane += gridDim.y) {
        i64 i3, i2, begin = 0;
        divide(plane, a.ne[2], &i3, &i2);
        const char *x = a.data + i2 * a.nb[2] + i3 * a.nb[3];
        char *y = to_rows ? place_of(n.dst, n.src[N - 1], a.ne[2], {0, i2, 0, 0})
                          : n.dst.data + i2 * n.dst.nb[2] + i3 * n.dst.nb[3];
        if (y == 0) continue;
        if (i < half) {
            const int which = multi ? position_of(p, i, &begin) : 0;
            const double position = (double)*(const int *)(b.data + (i2 + which * a.ne[2]) * b.nb[0]);
            double freq = exp2((double)(vision ? i - begin : i) * double_of(n.aux[0]));
            if (factors.data != 0) freq /= (double)f32_at(factors.data + i * factors.nb[0]);
            const double low = double_of(n.aux[1]), high = double_of(n.aux[2]), mix = (double)param(p, EXT_FACTOR);
            const double ramp = ((double)i - low) / fmax(0.001, high - low);
            const double kept = mix * (1.0 - fmin(1.0, fmax(0.0, ramp)));
            freq *= (double)param(p, FREQ_SCALE) * (1.0 - kept) + kept;
            const double turns = position * freq * 0.15915494309189533577; // only the fraction of a turn counts
            const float angle = (float)((turns - rint(turns)) * 6.28318530717958647693);
            const float magnitude = (float)double_of(n.aux[3]), c = cosf(angle) * magnitude;
            const float s = (n.op == OP_rope_back ? -sinf(angle) : sinf(angle)) * magnitude;
            const i64 first = offset + (p[MODE] == 0 ? 2 * i : i), second = p[MODE] == 0 ? first + 1 : first + half;
            for (i64 i1 = threadIdx.y; i1 < a.ne[1]; i1 += blockDim.y) {
                const T *from = (const T *)(x + i1 * a.nb[1]);
                char *to = y + i1 * head;
                const float v = to_float(from[first]), w = to_float(from[second]);
                store(type, to + first * size, v * c - w * s);
                store(type, to + second * size, v * s + w * c);
            }
        }
        // The same threads copy the elements that are not turned.
        for (i64 i1 = threadIdx.y; i1 < a.ne[1]; i1 += blockDim.y) {
            const T *from = (const T *)(x + i1 * a.nb[1]);
            char *to = y + i1 * head;
            if ((const char *)from == to) continue;
            for (i64 e = i; e < a.ne[0] - dims; e += (i64)gridDim.x * 32) {
                const i64 place = e < offset ? e : e + dims;
                if (to_rows)
                    store(type, to + place * size, to_float(from[place]));
                else
                    ((T *)to)[place] = from[place];
            }
        }
    }
}

KERNEL(rope_f32, 256, Node<3>) { turn<float>(n); }
KERNEL(rope_f16, 256, Node<3>) { turn<half_t>(n); }
KERNEL(rope_to_rows, 256, Node<4>)
{
    if (n.fault[0] == 0) turn<float>(n);
}

struct Step { // a token of a decoder: rope of queries, rope of keys to rows of the cache, rows of values to the cache
    Node<3> queries;
    Node<4> keys;
    Node<2> values;
};

// grid: as for the larger rope; z: 0 for queries, 1 for keys, 2 for values.
KERNEL(rope_and_rows, 256, Step)
{
    if (blockIdx.z == 0) {
        turn<float>(n.queries);
    } else if (blockIdx.z == 1) {
        if (n.keys.fault[0] == 0) turn<float>(n.keys);
    } else if (n.values.fault[0] == 0) {
        const i64 rows = row_count(n.values.src[0]), first = (i64)blockIdx.y * gridDim.x + blockIdx.x;
        for (i64 row = first; row < rows; row += (i64)gridDim.x * gridDim.y)
            set_row(n.values, row, (int)(threadIdx.y * 32 + threadIdx.x), 256);
    }
}
