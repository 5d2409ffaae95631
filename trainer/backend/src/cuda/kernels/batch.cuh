// A batch on the device: its slot, and behind that what follows from it. Places are bytes from its beginning.
#pragma once

#include "device.cuh"

// A column of ids.
struct IdColumn {
    // Ids, one a row; or the values of a ragged feature.
    u64 ids;
    // [B + 1] u32; 0 of a column with one id a row.
    u64 offsets;
    // Which row each value is of, u32; of a ragged feature.
    u64 rows;
    // A number beside each value, f32; 0 where they have none.
    u64 weights;
    // What the values of a row count times, f64 a row, by a mean and over a root; of a ragged feature.
    u64 mean_scales, root_scales;
    // Ids are below this.
    u32 cardinality;
    // The most ids of a row.
    u32 maximum;
};

// How the rows that a batch's row names become one; as the host numbers it.
enum Pooling : u32 { SUM = 0, MEAN = 1, ROOT = 2 };

template <typename T>
__device__ __forceinline__ const T* part(const char* batch, u64 place) {
    return (const T*)(batch + place);
}

// Values of a ragged feature's row.
struct Values {
    u32 first, end;
};

__device__ __forceinline__ Values values_of(const char* batch, const IdColumn& column, u32 row) {
    if (column.offsets == 0) return {row, row + 1};
    const u32* offsets = part<u32>(batch, column.offsets);
    return {offsets[row], offsets[row + 1]};
}

// What value `value` of row `row` counts for.
__device__ __forceinline__ float share_of(const char* batch, const IdColumn& column, u32 pooling, u32 row, u32 value) {
    if (column.offsets == 0) return 1.0f;
    float weight = column.weights == 0 ? 1.0f : part<float>(batch, column.weights)[value];
    if (pooling == SUM) return weight;
    double scale = part<double>(batch, pooling == MEAN ? column.mean_scales : column.root_scales)[row];
    return float(double(fmaxf(weight, 0.0f)) * scale);
}
