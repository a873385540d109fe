// Blocks of 32 elements, two codes to a byte or one, with one scale.
#pragma once
#include "quantize_search.cuh"

DEV void put_q4_5(i64 type, const float *x, char *y)
{
    const bool affine = type == Q4_1 || type == Q5_1, five = type == Q5_0 || type == Q5_1;
    const int top = five ? 31 : 15;
    float d, least = 0.0f, shift;
    if (affine) {
        float most = x[0];
        least = x[0];
#pragma unroll 1
        for (int i = 1; i < 32; ++i) {
            least = x[i] < least ? x[i] : least;
            most = x[i] > most ? x[i] : most;
        }
        d = (most - least) / (float)top;
        shift = 0.5f;
    } else {
        d = extreme(32, x) / (five ? -16.0f : -8.0f);
        shift = five ? 16.5f : 8.5f;
    }
    const float inverse = inverse_of(d);
    put_half(y, d);
    if (affine) put_half(y + 2, least);
    y += affine ? 4 : 2;
    u32 high = 0;
    char *qs = five ? y + 4 : y;
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
        const int a = code_below((x[i] - least) * inverse + shift, top);
        const int b = code_below((x[i + 16] - least) * inverse + shift, top);
        qs[i] = (char)((a & 15) | (b & 15) << 4);
        high |= (u32)(a >> 4) << i | (u32)(b >> 4) << (i + 16);
    }
    if (five) {
        *(u16 *)y = (u16)high;
        *(u16 *)(y + 2) = (u16)(high >> 16);
    }
}

DEV void put_q8(i64 type, const float *x, char *y)
{
    float largest = 0.0f;
#pragma unroll 1
    for (int i = 0; i < 32; ++i) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    const float d = largest / 127.0f, inverse = inverse_of(d);
    int sum = 0;
    char *qs = y + (type == Q8_1 ? 4 : 2);
    put_half(y, d);
#pragma unroll 1
    for (int i = 0; i < 32; ++i) {
        const int code = round_i8(x[i] * inverse);
        qs[i] = (char)code;
        sum += code;
    }
    if (type == Q8_1) put_half(y + 2, (float)sum * d);
}

DEV void put_q4_0(const float *x, char *y) { put_q4_5(Q4_0, x, y); }
DEV void put_q4_1(const float *x, char *y) { put_q4_5(Q4_1, x, y); }
DEV void put_q5_0(const float *x, char *y) { put_q4_5(Q5_0, x, y); }
DEV void put_q5_1(const float *x, char *y) { put_q4_5(Q5_1, x, y); }
DEV void put_q8_0(const float *x, char *y) { put_q8(Q8_0, x, y); }
DEV void put_q8_1(const float *x, char *y) { put_q8(Q8_1, x, y); }
