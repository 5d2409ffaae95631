// The optimizers' formulas: see `Formula` and `Update` on the host.
#pragma once

#include "device.cuh"

enum Kind : u32 { SGD = 0, MOMENTUM = 1, NESTEROV = 2, ADAGRAD = 3, ROW_WISE_ADAGRAD = 4, ADAM = 5, FTRL = 6 };

struct Update {
    u32 kind;
    float learning_rate;
    // Meaning depends on the kind: momentum; epsilon; beta1, beta2, epsilon and the bias corrections of this step;
    // beta, l1, l2.
    float a, b, c, d, e, f;
    float clip, l2;
};

// The gradient scale. After an invalid batch it is 0, which skips steps, until the host has read the fault.
__device__ __forceinline__ float scale_of(const float* scale, const u64* fault) {
    return *fault == ~0ull ? *scale : 0.0f;
}

// `x`, limited to `most` and `-most`. NaN stays NaN, which fminf would drop.
__device__ __forceinline__ float clamped(float x, float most) {
#ifdef ON_HOST
    return x > most ? most : x < -most ? -most : x;
#else
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(most));
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-most));
    return x;
#endif
}

__device__ __forceinline__ float shaped(const Update& update, float scale, float g, float w) {
    return fmaf(update.l2, w, clamped(scale * g, update.clip));
}

// Square roots and quotients with an error of at most 2 units in the last place each, in a fifth of the instructions of rounded ones
// (PTX ISA, `sqrt` and `div`). A quotient by more than 2^126 may be 0.
__device__ __forceinline__ float fast_root(float x) {
#ifdef ON_HOST
    return sqrtf(x);
#else
    float root;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
    return root;
#endif
}

__device__ __forceinline__ float fast_quotient(float x, float y) {
#ifdef ON_HOST
    return x / y;
#else
    float quotient;
    asm("div.approx.f32 %0, %1, %2;" : "=f"(quotient) : "f"(x), "f"(y));
    return quotient;
#endif
}

// The new weight, given the shaped gradient; updates the states in place.
__device__ __forceinline__ float stepped(const Update& update, float w, float& first, float& second, float g) {
    float rate = update.learning_rate;
    switch (update.kind) {
        case SGD: return w - rate * g;
        case MOMENTUM: first = update.a * first + g; return w - rate * first;
        case NESTEROV: first = update.a * first + g; return w - rate * (g + update.a * first);
        case ADAGRAD: first += g * g; return w - fast_quotient(rate * g, fast_root(first) + update.a);
        case ADAM: {
            // a, b: betas; c: epsilon; d: bias-corrected rate; e: scale of the root at this step; f: weight decay.
            w -= update.f * w;
            first = update.a * first + (1.0f - update.a) * g;
            second = update.b * second + (1.0f - update.b) * g * g;
            return w - fast_quotient(update.d * first, fast_root(second) * update.e + update.c);
        }
        default: {
            // FTRL. a: beta; b: l1; c: l2.
            float n = second + g * g;
            float sigma = (sqrtf(n) - sqrtf(second)) / rate;
            first += g - sigma * w;
            second = n;
            float sign = first < 0.0f ? -1.0f : 1.0f;
            return fabsf(first) <= update.b ? 0.0f : (sign * update.b - first) / ((update.a + sqrtf(n)) / rate + update.c);
        }
    }
}
