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

__device__ __forceinline__ float shaped(const Update& update, float scale, float g, float w) {
    float x = scale * g;
    // fminf would drop a NaN.
    x = x > update.clip ? update.clip : x < -update.clip ? -update.clip : x;
    return update.l2 != 0.0f ? fmaf(update.l2, w, x) : x;
}

// The new weight, given the shaped gradient; updates the states in place.
__device__ __forceinline__ float stepped(const Update& update, float w, float& first, float& second, float g) {
    float rate = update.learning_rate;
    switch (update.kind) {
        case SGD: return w - rate * g;
        case MOMENTUM: first = update.a * first + g; return w - rate * first;
        case NESTEROV: first = update.a * first + g; return w - rate * (g + update.a * first);
        case ADAGRAD: first += g * g; return w - rate * g / (sqrtf(first) + update.a);
        case ADAM: {
            // a, b: betas; c: epsilon; d: bias-corrected rate; e: scale of the root at this step; f: weight decay.
            w -= update.f * w;
            first = update.a * first + (1.0f - update.a) * g;
            second = update.b * second + (1.0f - update.b) * g * g;
            return w - update.d * first / (sqrtf(second) * update.e + update.c);
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
