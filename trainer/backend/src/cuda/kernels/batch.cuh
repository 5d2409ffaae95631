// A batch on the device: the contents of its slot, followed by derived data. Places are byte offsets from its
// start.
#pragma once

#include "device.cuh"

// A column of ids.
struct IdColumn {
    // One id per row, or the values of a ragged feature.
    u64 ids;
    // [B + 1] u32; 0 for a single-valued column.
    u64 offsets;
    // The row of each value, u32; ragged features only.
    u64 rows;
    // The weight of each value, f32; 0 if the feature has no weights.
    u64 weights;
    // The factor of each row's values for mean and for sqrt(n) pooling, f64 per row; ragged features only.
    u64 mean_scales, root_scales;
    // Ids are below this.
    u32 cardinality;
    // The most ids per row.
    u32 maximum;
};

// How the table rows of one batch row are combined, if they are, with the host's codes.
enum Pooling : u32 { SUM = 0, MEAN = 1, ROOT = 2, UNPOOLED = 3, MAX = 4 };

template <typename T>
__device__ __forceinline__ const T* part(const char* batch, u64 place) {
    return (const T*)(batch + place);
}

// The range of a ragged feature's values in a row.
struct Values {
    u32 first, end;
};

__device__ __forceinline__ Values values_of(const char* batch, const IdColumn& column, u32 row) {
    if (column.offsets == 0) return {row, row + 1};
    const u32* offsets = part<u32>(batch, column.offsets);
    return {offsets[row], offsets[row + 1]};
}

// The factor of value `value` of row `row` in its pooled sum.
__device__ __forceinline__ float share_of(const char* batch, const IdColumn& column, u32 pooling, u32 row, u32 value) {
    if (column.offsets == 0 || pooling == UNPOOLED || pooling == MAX) return 1.0f;
    float weight = column.weights == 0 ? 1.0f : part<float>(batch, column.weights)[value];
    if (pooling == SUM) return weight;
    double scale = part<double>(batch, pooling == MEAN ? column.mean_scales : column.root_scales)[row];
    return float(double(fmaxf(weight, 0.0f)) * scale);
}
