// A floor for decoding: checksums and parsing of TFRecord files of Examples, and nothing else.
//
//     gcc -O3 -march=native -o decode_floor bench/decode_floor.c && ./decode_floor [-n RUNS] FILE...
//
// The rate of one core under strong assumptions: the file is in memory, column names, order and types are those of the
// record with the most features, every feature holds one value in the packed layout, and lengths fit into one byte; the
// program exits at anything else. CRC-32C uses the CPU's instruction in three interleaved streams. Prints rows/s as
// minimum, median and maximum, like `pipeline/examples/decode_speed.rs`; `bench/decode.py` runs both in turns.

#include <nmmintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_COLUMNS = 256, CHUNK_ROWS = 1024, STRIDE = 64 };

typedef struct {
    uint8_t head[72];  // tag and length of the key, the key, the value's tag
    int head_bytes;
    int kind;          // of the list: 1 bytes, 2 float, 3 int64
    int64_t ints[CHUNK_ROWS];
    float floats[CHUNK_ROWS];
    int32_t ends[CHUNK_ROWS + 1];
    uint8_t bytes[CHUNK_ROWS * 128];
    uint8_t valid[CHUNK_ROWS];
} Column;

static Column columns[MOST_COLUMNS];
static int column_count;
static uint32_t shift1[4][256], shift2[4][256];  // a CRC extended by 64 and 128 zero bytes

static void die(const char *why) { fprintf(stderr, "decode_floor: %s\n", why); exit(1); }

static uint64_t load(const uint8_t *p) { uint64_t w; memcpy(&w, p, 8); return w; }

static void make_shift(uint32_t table[4][256], int bytes) {
    for (int k = 0; k < 4; k++)
        for (int b = 0; b < 256; b++) {
            uint64_t crc = (uint32_t)b << (8 * k);
            for (int i = 0; i < bytes; i += 8) crc = _mm_crc32_u64(crc, 0);
            table[k][b] = (uint32_t)crc;
        }
}

static uint32_t shifted(uint32_t t[4][256], uint32_t c) {
    return t[0][c & 255] ^ t[1][c >> 8 & 255] ^ t[2][c >> 16 & 255] ^ t[3][c >> 24];
}

static uint32_t masked_crc(const uint8_t *p, size_t n) {
    uint64_t a = 0xffffffff;
    for (; n >= 3 * STRIDE; p += 3 * STRIDE, n -= 3 * STRIDE) {
        uint64_t b = 0, c = 0;
        for (int i = 0; i < STRIDE; i += 8) {
            a = _mm_crc32_u64(a, load(p + i));
            b = _mm_crc32_u64(b, load(p + STRIDE + i));
            c = _mm_crc32_u64(c, load(p + 2 * STRIDE + i));
        }
        a = shifted(shift2, (uint32_t)a) ^ shifted(shift1, (uint32_t)b) ^ (uint32_t)c;
    }
    for (; n >= 8; p += 8, n -= 8) a = _mm_crc32_u64(a, load(p));
    for (; n; p++, n--) a = _mm_crc32_u8((uint32_t)a, *p);
    uint32_t crc = ~(uint32_t)a;
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

static uint64_t varint(const uint8_t **p) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        uint8_t byte = *(*p)++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return value;
    }
}

// The features of an Example, between p and *end.
static const uint8_t *features(const uint8_t *p, const uint8_t **end) {
    if (*p++ != 0x0a) die("no Example");
    size_t n = varint(&p);
    if (p + n != *end) die("more than features");
    return p;
}

// Reads the columns of a record; returns their number.
static int learn(const uint8_t *p, const uint8_t *end) {
    int count = 0;
    for (p = features(p, &end); p < end; p += 2 + p[1], count++) {
        Column *c = &columns[count];
        c->head_bytes = 3 + p[3];
        if (c->head_bytes > 72 || p[1] > 127) die("a long name or value");
        memcpy(c->head, p + 2, c->head_bytes);
        c->kind = p[2 + c->head_bytes + 1] >> 3;
    }
    return column_count = count;
}

static void parse(const uint8_t *p, const uint8_t *end, int row) {
    p = features(p, &end);
    for (int i = 0; i < column_count; i++) {
        Column *c = &columns[i];
        // 0a L [head] F kind F-2 0a V value
        const uint8_t *tail = p + 2 + c->head_bytes;
        if (p >= end || memcmp(p + 2, c->head, c->head_bytes)) {
            c->valid[row] = 0;
            c->ints[row] = 0;
            c->floats[row] = 0;
            c->ends[row + 1] = c->ends[row];
            continue;
        }
        const uint8_t *value = tail + 5, *next = p + 2 + p[1];
        if (p[0] != 0x0a || tail[1] != (c->kind << 3 | 2) || tail[3] != 0x0a || value + tail[4] != next || next > end)
            die("an unusual layout");
        c->valid[row] = 1;
        if (c->kind == 3) {
            c->ints[row] = (int64_t)varint(&value);
            if (value != next) die("several values");
        } else if (c->kind == 2) {
            if (tail[4] != 4) die("several values");
            memcpy(&c->floats[row], value, 4);
        } else {
            memcpy(c->bytes + c->ends[row], value, tail[4]);
            c->ends[row + 1] = c->ends[row] + tail[4];
        }
        p = next;
    }
    if (p != end) die("an unknown feature");
}

static size_t decode(const uint8_t *p, const uint8_t *end) {
    size_t rows = 0;
    while (p < end) {
        size_t n = load(p);
        uint32_t header, footer;
        memcpy(&header, p + 8, 4);
        if (masked_crc(p, 8) != header) die("a damaged length");
        memcpy(&footer, p + 12 + n, 4);
        if (masked_crc(p + 12, n) != footer) die("damaged data");

        parse(p + 12, p + 12 + n, rows % CHUNK_ROWS);
        __asm__ volatile("" ::: "memory");
        p += 16 + n;
        rows++;
    }
    return rows;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const char *path, int runs) {
    FILE *file = fopen(path, "rb");
    if (!file) die(path);
    fseek(file, 0, SEEK_END);
    size_t size = ftell(file), rows = 0;
    rewind(file);
    uint8_t *data = malloc(size + 64);
    if (fread(data, 1, size, file) != size) die(path);
    fclose(file);
    column_count = 0;
    // The columns are those of the record with the most features, which must have all of them.
    size_t best = 0;
    int most = 0;
    for (size_t at = 0; at < size; at += 16 + load(data + at)) {
        int count = learn(data + at + 12, data + at + 12 + load(data + at));
        if (count > most) best = at, most = count;
    }
    learn(data + best + 12, data + best + 12 + load(data + best));
    double rates[64];
    for (int run = 0; run <= runs && run < 64; run++) {
        struct timespec start, stop;
        clock_gettime(CLOCK_MONOTONIC, &start);
        rows = decode(data, data + size);
        clock_gettime(CLOCK_MONOTONIC, &stop);
        double seconds = (stop.tv_sec - start.tv_sec) + 1e-9 * (stop.tv_nsec - start.tv_nsec);
        if (run) rates[run - 1] = rows / seconds;  // the first run touches memory for the first time
    }
    qsort(rates, runs, sizeof *rates, ascending);
    const char *name = strrchr(path, '/');
    printf("%s %zu rows, rows/s %.0f %.0f %.0f\n", name ? name + 1 : path, rows, rates[0], rates[runs / 2], rates[runs - 1]);
    free(data);
}

int main(int argc, char **argv) {
    int first = 1, runs = 7;
    if (argc > 2 && !strcmp(argv[1], "-n")) runs = atoi(argv[2]), first = 3;
    if (runs < 1 || runs > 63) die("1 to 63 runs");
    make_shift(shift1, STRIDE);
    make_shift(shift2, 2 * STRIDE);
    for (int i = first; i < argc; i++) measure(argv[i], runs);
    return 0;
}
