/*
 * The features of MODEL_NAME: from values to the inputs of its ONNX file, in C99 or C++.
 *
 * Millstream writes this file when it exports a model (`millstream export --transforms`). It holds the features of the
 * job with their vocabularies, boundaries and statistics, and needs only libc and libm. It allocates nothing, has no
 * state, and can be used by any number of threads.
 *
 *     ms_row row = {0};                       // all values are absent; {} in C++
 *     row.age = ms_real(31);
 *     row.colour = ms_text("red", 3);
 *     ms_inputs inputs = {0};
 *     ms_error error;
 *     if (!ms_transform(&row, &inputs, &error)) fprintf(stderr, "%s\n", error.message);
 *
 * `ms_row` has a member per column, `ms_inputs` one per input of the ONNX file, and each feature a function, at the end
 * of this file. They return false if a value cannot be used, and describe it in `error`, which may be NULL. Where a name
 * is no identifier, other characters are underscores; a comment has the name itself.
 *
 * What is exact: a row has the ids and numbers that `millstream predict` computes from the same row in JSON lines, bit
 * for bit, and a value that `predict` refuses is an error. That includes the hashes (FarmHash's Fingerprint64, as in
 * tf.strings.to_hash_bucket_fast and tf.sparse.cross_hashed) and the text of numbers that are hashed. Like `predict`,
 * this reads a value in the type in which the training data stored the column, and as text if that is unknown.
 *
 * What differs: text of dates and timestamps must be ISO 8601 (2026-11-21, 2026/11/21, 2026-11-21T12:38:00.5Z) or whole
 * seconds since 1970; `predict` accepts more spellings. Text that means "missing" is absent in lists of numbers too. Text
 * is not checked to be UTF-8, and never split into lists. Filters of the job are not applied, and columns that the model
 * does not read are ignored.
 *
 * It relies on IEEE 754 doubles, the default rounding mode, and correctly rounded strtod and snprintf, as the C libraries
 * of Linux, macOS and Windows have. Do not compile it with -ffast-math.
 */

#ifndef MS_FEATURES_H
#define MS_FEATURES_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Values. */

typedef enum { MS_ABSENT, MS_BOOLEAN, MS_INTEGER, MS_NATURAL, MS_REAL, MS_TEXT } ms_kind;

/* A value; zeros mean an absent one. Text may contain any bytes, and is not copied. */
typedef struct {
    ms_kind kind;
    union {
        bool boolean;
        int64_t integer;
        uint64_t natural;
        double real;
        const char *text;
    } as;
    size_t length;
} ms_value;

/* The values of a multi-valued column or vector; zeros mean none. */
typedef struct {
    const ms_value *values;
    size_t count;
} ms_values;

/* Why a row has no inputs: names the feature, the column and the value. */
typedef struct {
    char message[512];
} ms_error;

static inline ms_value ms_absent(void) {
    ms_value value;
    value.kind = MS_ABSENT;
    value.as.natural = 0;
    value.length = 0;
    return value;
}

static inline ms_value ms_boolean(bool boolean) {
    ms_value value = ms_absent();
    value.kind = MS_BOOLEAN;
    value.as.boolean = boolean;
    return value;
}

static inline ms_value ms_integer(int64_t integer) {
    ms_value value = ms_absent();
    value.kind = MS_INTEGER;
    value.as.integer = integer;
    return value;
}

/* An integer that may exceed INT64_MAX. */
static inline ms_value ms_natural(uint64_t natural) {
    ms_value value = ms_absent();
    value.kind = MS_NATURAL;
    value.as.natural = natural;
    return value;
}

static inline ms_value ms_real(double real) {
    ms_value value = ms_absent();
    value.kind = MS_REAL;
    value.as.real = real;
    return value;
}

static inline ms_value ms_text(const char *text, size_t length) {
    ms_value value = ms_absent();
    value.kind = MS_TEXT;
    value.as.text = text;
    value.length = length;
    return value;
}

/* How the features are described; the tables are at the end. */

typedef enum {
    MS_STORED_TEXT,
    MS_STORED_INTEGER,
    MS_STORED_NATURAL,
    MS_STORED_FLOAT32,
    MS_STORED_FLOAT64,
    MS_STORED_BOOLEAN,
    MS_STORED_DATE,
    MS_STORED_TIMESTAMP
} ms_stored;

/* A column, and the type in which the training data stored it. */
typedef struct {
    const char *name;
    ms_stored stored;
    int64_t per_second; /* of timestamps */
    bool is_utc;
} ms_column;

typedef struct {
    const char *bytes;
    size_t length;
    uint32_t id;
} ms_term;

/* A column of a feature, with the boundaries that bucketize it, in the precision of the column. */
typedef struct {
    ms_column column;
    const double *boundaries;
    size_t boundary_count;
} ms_part;

typedef enum {
    MS_NUMBERS,
    MS_BUCKETIZED,
    MS_VOCABULARY,
    MS_HASHED,
    MS_IDENTITY,
    MS_CROSSED
} ms_feature_kind;

typedef struct {
    const char *name;
    ms_feature_kind kind;
    const ms_part *parts;
    size_t part_count;
    const ms_column *weights;
    uint32_t absent;  /* the id of an absent value */
    uint32_t buckets; /* of hashes, of unknown terms, or of identities */
    bool is_missing_beyond;
    const ms_term *terms; /* sorted by their bytes */
    size_t term_count;
    size_t size; /* of a vector, or the maximum of ids */
    bool logarithm;
    double shift;
    double divisor;
    bool may_be_absent;
} ms_feature;

/* The values that mean "missing": texts as they are and without spaces around them, and numbers by value. */
typedef struct {
    const ms_term *exact;
    const ms_term *trimmed;
    size_t text_count;
    const int64_t *integers;
    size_t integer_count;
    const uint64_t *naturals;
    size_t natural_count;
    const double *reals;
    size_t real_count;
} ms_missing;

static inline const ms_missing *ms_missing_values(void);

/* FarmHash's Fingerprint64, and its combination for crosses. */

#define MS_K0 UINT64_C(0xc3a5c85c97cb3127)
#define MS_K1 UINT64_C(0xb492b66fbe98f273)
#define MS_K2 UINT64_C(0x9ae16a3b2f90404f)
#define MS_CROSS_KEY UINT64_C(0xdecafcaffe)

typedef struct {
    uint64_t first;
    uint64_t second;
} ms_pair;

static inline uint64_t ms_byte(const char *text) { return (uint64_t)(unsigned char)*text; }

static inline uint64_t ms_fetch32(const char *text) {
    return ms_byte(text) | ms_byte(text + 1) << 8 | ms_byte(text + 2) << 16 | ms_byte(text + 3) << 24;
}

static inline uint64_t ms_fetch64(const char *text) { return ms_fetch32(text) | ms_fetch32(text + 4) << 32; }

static inline uint64_t ms_rotate(uint64_t value, int bits) { return value >> bits | value << (64 - bits); }

static inline uint64_t ms_shift_mix(uint64_t value) { return value ^ value >> 47; }

static inline uint64_t ms_hash_pair(uint64_t u, uint64_t v, uint64_t mul) {
    const uint64_t a = ms_shift_mix((u ^ v) * mul);
    return ms_shift_mix((v ^ a) * mul) * mul;
}

static inline ms_pair ms_fold_four(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t turned, uint64_t base) {
    ms_pair folded;
    folded.first = ms_rotate(a + b, 43) + ms_rotate(c, 30) + d;
    folded.second = base + ms_rotate(turned, 18) + c;
    return folded;
}

static inline ms_pair ms_weak_hash(const char *text, uint64_t a, uint64_t b) {
    const uint64_t w = ms_fetch64(text), x = ms_fetch64(text + 8), y = ms_fetch64(text + 16), z = ms_fetch64(text + 24);
    ms_pair hash;
    uint64_t c;
    a += w;
    b = ms_rotate(b + a + z, 21);
    c = a;
    a += x + y;
    b += ms_rotate(a, 44);
    hash.first = a + z;
    hash.second = b + c;
    return hash;
}

/* More than 64 bytes. */
static inline uint64_t ms_fingerprint_of_long(const char *text, size_t length) {
    const size_t last = length - 1, blocks = last / 64;
    uint64_t x = 81 * MS_K2 + ms_fetch64(text), y = 81 * MS_K1 + 113;
    uint64_t z = ms_shift_mix(y * MS_K2 + 113) * MS_K2, mul = MS_K1, factor = 1;
    ms_pair v = {0, 0}, w = {0, 0};
    /* All whole blocks but the one with the last byte; then the last 64 bytes. */
    for (size_t block = 0; block <= blocks; block++) {
        const char *at = text + 64 * block;
        uint64_t swapped;
        if (block == blocks) {
            at = text + length - 64;
            factor = 9;
            mul = MS_K1 + ((z & 0xff) << 1);
            w.first += last & 63;
            v.first += w.first;
            w.first += v.first;
        }
        x = ms_rotate(x + y + v.first + ms_fetch64(at + 8), 37) * mul;
        y = ms_rotate(y + v.second + ms_fetch64(at + 48), 42) * mul;
        x ^= w.second * factor;
        y += v.first * factor + ms_fetch64(at + 40);
        z = ms_rotate(z + w.first, 33) * mul;
        v = ms_weak_hash(at, v.second * mul, x + w.first);
        w = ms_weak_hash(at + 32, z + w.second, y + ms_fetch64(at + 16));
        swapped = z;
        z = x;
        x = swapped;
    }
    return ms_hash_pair(ms_hash_pair(v.first, w.first, mul) + ms_shift_mix(y) * MS_K0 + z,
                        ms_hash_pair(v.second, w.second, mul) + x, mul);
}

/* The hash of which tf.strings.to_hash_bucket_fast takes the remainder. */
static inline uint64_t ms_fingerprint64(const char *text, size_t length) {
    const uint64_t mul = MS_K2 + 2 * (uint64_t)length;
    if (length > 64) return ms_fingerprint_of_long(text, length);
    if (length > 16) {
        const uint64_t a = ms_fetch64(text) * (length <= 32 ? MS_K1 : MS_K2);
        const uint64_t b = ms_fetch64(text + 8), c = ms_fetch64(text + length - 8) * mul;
        const uint64_t d = ms_fetch64(text + length - 16) * MS_K2;
        const ms_pair folded = ms_fold_four(a, b, c, d, b + MS_K2, a);
        const uint64_t hash = ms_hash_pair(folded.first, folded.second, mul);
        if (length > 32) {
            const uint64_t e = ms_fetch64(text + 16) * mul, f = ms_fetch64(text + 24);
            const uint64_t g = (folded.first + ms_fetch64(text + length - 32)) * mul;
            const uint64_t h = (hash + ms_fetch64(text + length - 24)) * mul;
            const ms_pair again = ms_fold_four(e, f, g, h, f + a, e);
            return ms_hash_pair(again.first, again.second, mul);
        }
        return hash;
    }
    if (length >= 8) {
        const uint64_t a = ms_fetch64(text) + MS_K2, b = ms_fetch64(text + length - 8);
        return ms_hash_pair(ms_rotate(b, 37) * mul + a, (ms_rotate(a, 25) + b) * mul, mul);
    }
    if (length >= 4) {
        return ms_hash_pair(length + (ms_fetch32(text) << 3), ms_fetch32(text + length - 4), mul);
    }
    if (length > 0) {
        const uint64_t y = ms_byte(text) + (ms_byte(text + (length >> 1)) << 8);
        const uint64_t z = length + (ms_byte(text + length - 1) << 2);
        return ms_shift_mix(y * MS_K2 ^ z * MS_K0) * MS_K2;
    }
    return MS_K2;
}

static inline uint64_t ms_cat64(uint64_t first, uint64_t second) {
    const uint64_t mul = UINT64_C(0xc6a4a7935bd1e995);
    const uint64_t joined = (first ^ mul ^ ms_shift_mix(second * mul) * mul) * mul;
    return ms_shift_mix(ms_shift_mix(joined) * mul);
}

/* Text and numbers, as Rust reads and writes them, whatever the locale. */

/* The longest text of a number: the smallest doubles have 326 digits and points, and a sign. */
#define MS_NUMBER_BYTES 352
/* More significant digits than decide how a decimal number is rounded. */
#define MS_DIGITS 800

static inline bool ms_is_digit(char byte) { return byte >= '0' && byte <= '9'; }

static inline bool ms_is_space(char byte) {
    return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\f' || byte == '\r';
}

/* Whether a text equals an ASCII word in lower case, in any case. */
static inline bool ms_is_word(const char *text, size_t length, const char *word) {
    if (length != strlen(word)) return false;
    for (size_t at = 0; at < length; at++) {
        const char byte = text[at];
        const char lower = byte >= 'A' && byte <= 'Z' ? (char)(byte - 'A' + 'a') : byte;
        if (lower != word[at]) return false;
    }
    return true;
}

/* The nearest number of 64 or 32 bits to `digits` times a power of ten. The digits have no point, which depends on the
 * locale, and room for an exponent behind them. */
static inline double ms_scaled(char *digits, size_t count, int64_t power, bool is_float32) {
    const int64_t magnitude = (int64_t)count + power;
    if (magnitude < -400) return 0;
    if (magnitude > 400) return HUGE_VAL;
    if (snprintf(digits + count, 16, "e%d", (int)power) < 0) return (double)NAN;
    return is_float32 ? (double)strtof(digits, NULL) : strtod(digits, NULL);
}

/* Reads a decimal number, rounded once. False if the text is none. */
static inline bool ms_parse_number(const char *text, size_t length, bool is_float32, double *number) {
    char digits[MS_DIGITS + 32];
    size_t at = 0, count = 0;
    int64_t power = 0, exponent = 0;
    bool is_negative = false, is_fraction = false, has_digits = false, has_more = false;
    double magnitude;
    if (at < length && (text[at] == '-' || text[at] == '+')) is_negative = text[at++] == '-';
    if (ms_is_word(text + at, length - at, "inf") || ms_is_word(text + at, length - at, "infinity")) {
        *number = is_negative ? -HUGE_VAL : HUGE_VAL;
        return true;
    }
    if (ms_is_word(text + at, length - at, "nan")) {
        *number = (double)NAN;
        return true;
    }
    for (; at < length && (ms_is_digit(text[at]) || (text[at] == '.' && !is_fraction)); at++) {
        if (text[at] == '.') {
            is_fraction = true;
            continue;
        }
        has_digits = true;
        power -= is_fraction;
        if (count == MS_DIGITS) {
            power++;
            has_more |= text[at] != '0';
        } else if (count > 0 || text[at] != '0') {
            digits[count++] = text[at];
        }
    }
    if (!has_digits) return false;
    if (at < length && (text[at] == 'e' || text[at] == 'E')) {
        bool is_below = false;
        at++;
        if (at < length && (text[at] == '-' || text[at] == '+')) is_below = text[at++] == '-';
        if (at == length) return false;
        for (; at < length && ms_is_digit(text[at]); at++) {
            if (exponent < INT64_C(100000000000000)) exponent = 10 * exponent + (text[at] - '0');
        }
        if (is_below) exponent = -exponent;
    }
    if (at != length) return false;
    if (has_more) {
        /* Any digit but 0 stands for those left out: it decides between two halves. */
        digits[count++] = '1';
        power--;
    }
    magnitude = count == 0 ? 0 : ms_scaled(digits, count, power + exponent, is_float32);
    *number = is_negative ? -magnitude : magnitude;
    return true;
}

/* Reads an integer of 64 bits. False if the text is none. */
static inline bool ms_parse_integer(const char *text, size_t length, bool *is_negative, uint64_t *magnitude) {
    size_t at = 0;
    *magnitude = 0;
    *is_negative = false;
    if (at < length && (text[at] == '-' || text[at] == '+')) *is_negative = text[at++] == '-';
    if (at == length) return false;
    for (; at < length; at++) {
        const uint64_t digit = (uint64_t)(text[at] - '0');
        if (!ms_is_digit(text[at]) || *magnitude > (UINT64_MAX - digit) / 10) return false;
        *magnitude = 10 * *magnitude + digit;
    }
    return true;
}

static inline size_t ms_write_natural(uint64_t natural, char *text) {
    char reversed[20];
    size_t count = 0;
    do {
        reversed[count++] = (char)('0' + natural % 10);
        natural /= 10;
    } while (natural > 0);
    for (size_t at = 0; at < count; at++) text[at] = reversed[count - 1 - at];
    return count;
}

static inline size_t ms_write_integer(int64_t integer, char *text) {
    if (integer >= 0) return ms_write_natural((uint64_t)integer, text);
    *text = '-';
    return 1 + ms_write_natural(0 - (uint64_t)integer, text + 1);
}

/* Whether `count` digits with a unit added to the last one read as `number`; they are then replaced. */
static inline bool ms_round_up(double number, bool is_float32, char *digits, size_t count, int power) {
    char upper[48], room[48];
    size_t nines = count;
    memcpy(upper, digits, count);
    while (nines > 0 && upper[nines - 1] == '9') upper[--nines] = '0';
    if (nines == 0) return false; /* A power of ten, which has fewer digits. */
    upper[nines - 1]++;
    memcpy(room, upper, count);
    if (ms_scaled(room, count, power - (int)count + 1, is_float32) != number) return false;
    memcpy(digits, upper, count);
    return true;
}

/* Whether a number is exactly in the middle between these digits and those above. */
static inline bool ms_is_half(double number, const char *digits, size_t count) {
    char text[MS_DIGITS + 32];
    size_t place = 0;
    /* More digits than any double has. */
    if (snprintf(text, sizeof text, "%.*e", MS_DIGITS, number) < 0) return false;
    for (const char *at = text; *at != 'e' && *at != 0; at++) {
        if (!ms_is_digit(*at)) continue;
        if (*at != (place < count ? digits[place] : place == count ? '5' : '0')) return false;
        place++;
    }
    return true;
}

/* The fewest digits that read as the same number, which is finite and above 0, and the power of ten of the first. Of
 * several, the nearest to the number; if two are equally near, the upper one or the even one. */
static inline size_t ms_shortest(double number, bool is_float32, bool is_upper, char *digits, int *power) {
    size_t count = 0;
    for (int places = 0; places < 17; places++) {
        char text[48], room[48];
        const char *from = text;
        if (snprintf(text, sizeof text, "%.*e", places, number) < 0) break;
        count = 0;
        for (; *from != 'e' && *from != 0; from++) {
            if (ms_is_digit(*from)) digits[count++] = *from;
        }
        *power = *from == 'e' ? atoi(from + 1) : 0;
        memcpy(room, digits, count);
        if (ms_scaled(room, count, *power - places, is_float32) == number) {
            if (is_upper && ms_is_half(number, digits, count)) {
                (void)ms_round_up(number, is_float32, digits, count, *power);
            }
            break;
        }
        /* Below a power of two numbers are closer together: the digits may have to be rounded up. */
        if (ms_round_up(number, is_float32, digits, count, *power)) break;
    }
    while (count > 1 && digits[count - 1] == '0') count--;
    return count;
}

/* Writes a number in positional notation, with at least `fraction` digits behind the point: `1.5`, or `2` for 2.0. */
static inline size_t ms_write_positional(const char *digits, size_t count, int power, size_t fraction, char *text) {
    size_t end = 0, used = 0;
    if (power < 0) text[end++] = '0';
    for (; power >= 0; power--) text[end++] = used < count ? digits[used++] : '0';
    if (used == count && fraction == 0) return end;
    text[end++] = '.';
    if (used == count) text[end++] = '0';
    if (used == 0) {
        for (; power < -1; power++) text[end++] = '0';
    }
    while (used < count) text[end++] = digits[used++];
    return end;
}

/* The shortest text that reads as the same number, in positional notation. */
static inline size_t ms_write_real(double real, bool is_float32, char *text) {
    char digits[32];
    size_t sign = 0, count;
    int power = 0;
    if (isnan(real) || isinf(real)) {
        const char *word = isnan(real) ? "NaN" : real < 0 ? "-inf" : "inf";
        memcpy(text, word, strlen(word));
        return strlen(word);
    }
    if (real < 0) text[sign++] = '-';
    real = fabs(real);
    if (real < (is_float32 ? 16777216.0 : 9007199254740992.0) && real == floor(real)) {
        return sign + ms_write_natural((uint64_t)real, text + sign);
    }
    count = ms_shortest(real, is_float32, true, digits, &power);
    return sign + ms_write_positional(digits, count, power, 0, text + sign);
}

/* The text of a number in JSON, as predict reads it where it expects text: 1.0, 0.00001, 1e-6 or 1e+16. */
static inline size_t ms_write_json(double real, char *text) {
    char digits[32];
    size_t end = 0, count;
    int power = 0;
    if (isnan(real) || isinf(real)) return ms_write_real(real, false, text);
    if (signbit(real)) text[end++] = '-';
    real = fabs(real);
    if (real == 0) {
        digits[0] = '0';
        count = 1;
    } else {
        count = ms_shortest(real, false, false, digits, &power);
    }
    if (power >= -5 && power <= 15) return end + ms_write_positional(digits, count, power, 1, text + end);
    end += ms_write_positional(digits, count, 0, 0, text + end);
    text[end++] = 'e';
    if (power > 0) text[end++] = '+';
    return end + ms_write_integer(power, text + end);
}

/* Dates and timestamps. */

#define MS_SECONDS_PER_DAY INT64_C(86400)

static inline int64_t ms_divide(int64_t value, int64_t by) { return value / by - (value % by < 0); }

static inline int64_t ms_remainder(int64_t value, int64_t by) { return value - ms_divide(value, by) * by; }

/* Days since 1970-01-01 (Hinnant, chrono-Compatible Low-Level Date Algorithms). */
static inline int64_t ms_days(int64_t year, int64_t month, int64_t day) {
    const int64_t of_march = month > 2 ? year : year - 1, era = ms_divide(of_march, 400);
    const int64_t of_era = of_march - era * 400;
    const int64_t of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

static inline size_t ms_write_padded(int64_t number, int digits, char *text) {
    for (int at = digits; at > 0; number /= 10) text[--at] = (char)('0' + number % 10);
    return (size_t)digits;
}

static inline size_t ms_write_date(int64_t date, char *text) {
    const int64_t days = date + 719468, era = ms_divide(days, 146097), of_era = ms_remainder(days, 146097);
    const int64_t years = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    const int64_t of_year = of_era - (365 * years + years / 4 - years / 100), shifted = (5 * of_year + 2) / 153;
    const int64_t month = shifted < 10 ? shifted + 3 : shifted - 9;
    const int64_t year = era * 400 + years + (month <= 2), size = year < 0 ? -year : year;
    size_t end = 0;
    int digits = 4;
    for (int64_t limit = 10000; size >= limit; limit *= 10) digits++;
    if (year < 0 || year > 9999) text[end++] = year < 0 ? '-' : '+';
    end += ms_write_padded(size, digits, text + end);
    text[end++] = '-';
    end += ms_write_padded(month, 2, text + end);
    text[end++] = '-';
    return end + ms_write_padded(of_year - (153 * shifted + 2) / 5 + 1, 2, text + end);
}

static inline size_t ms_write_timestamp(int64_t ticks, int64_t per_second, bool is_utc, char *text) {
    const int64_t seconds = ms_divide(ticks, per_second), fraction = ms_remainder(ticks, per_second);
    const int64_t of_day = ms_remainder(seconds, MS_SECONDS_PER_DAY);
    size_t end = ms_write_date(ms_divide(seconds, MS_SECONDS_PER_DAY), text);
    text[end++] = 'T';
    end += ms_write_padded(of_day / 3600, 2, text + end);
    text[end++] = ':';
    end += ms_write_padded(of_day / 60 % 60, 2, text + end);
    text[end++] = ':';
    end += ms_write_padded(of_day % 60, 2, text + end);
    if (fraction > 0) {
        int places = 0;
        for (int64_t limit = 1; limit < per_second; limit *= 10) places++;
        text[end++] = '.';
        end += ms_write_padded(fraction, places, text + end);
        while (text[end - 1] == '0') end--;
    }
    if (is_utc) text[end++] = 'Z';
    return end;
}

/* Reads the digits of `form`, in which 0 stands for a digit, into its numbers. False if the text has another form. */
static inline bool ms_match(const char *text, size_t length, const char *form, int64_t *numbers) {
    if (length != strlen(form)) return false;
    int number = 0;
    numbers[0] = 0;
    for (size_t at = 0; at < length; at++) {
        if (form[at] == '0') {
            if (!ms_is_digit(text[at])) return false;
            numbers[number] = 10 * numbers[number] + (text[at] - '0');
        } else {
            if (text[at] != form[at]) return false;
            numbers[++number] = 0;
        }
    }
    return true;
}

static inline bool ms_parse_date(const char *text, size_t length, int64_t *date) {
    int64_t parts[3], length_of_month;
    if (!ms_match(text, length, "0000-00-00", parts) && !ms_match(text, length, "0000/00/00", parts)) return false;
    if (parts[1] < 1 || parts[1] > 12) return false;
    length_of_month = ms_days(parts[0] + (parts[1] == 12), parts[1] % 12 + 1, 1) - ms_days(parts[0], parts[1], 1);
    if (parts[2] < 1 || parts[2] > length_of_month) return false;
    *date = ms_days(parts[0], parts[1], parts[2]);
    return true;
}

/* Reads seconds since 1970 in UTC, and nanoseconds. */
static inline bool ms_parse_moment(const char *text, size_t length, int64_t *seconds, int64_t *nanoseconds) {
    int64_t date, time[2], second[2] = {0, 0}, zone[2] = {0, 0}, unit = 100000000;
    bool is_negative = false;
    uint64_t magnitude;
    *nanoseconds = 0;
    if (ms_parse_integer(text, length, &is_negative, &magnitude)) {
        /* The years of chrono, in which predict reads timestamps: -262143 to 262142. */
        if (magnitude > (is_negative ? UINT64_C(8334601228800) : UINT64_C(8210266876799))) return false;
        *seconds = is_negative ? -(int64_t)magnitude : (int64_t)magnitude;
        return true;
    }
    if (ms_parse_date(text, length, &date)) {
        *seconds = date * MS_SECONDS_PER_DAY;
        return true;
    }
    if (length < 16 || text[4] != '-' || !ms_parse_date(text, 10, &date)) return false;
    if ((text[10] != 'T' && text[10] != ' ') || !ms_match(text + 11, 5, "00:00", time)) return false;
    text += 16;
    length -= 16;
    if (length > 0) {
        if (length < 3 || !ms_match(text, 3, ":00", second)) return false;
        text += 3;
        length -= 3;
        if (length > 0 && *text == '.') {
            size_t at = 1;
            for (; at < length && ms_is_digit(text[at]) && unit > 0; at++, unit /= 10) {
                *nanoseconds += (text[at] - '0') * unit;
            }
            if (at == 1) return false;
            text += at;
            length -= at;
        }
        if (length == 6 && (*text == '+' || *text == '-')) {
            if (!ms_match(text + 1, 5, "00:00", zone)) return false;
            is_negative = *text == '-';
        } else if (length > 0 && !(length == 1 && *text == 'Z')) {
            return false;
        }
    }
    if (time[0] > 23 || time[1] > 59 || second[1] > 59 || zone[0] > 23 || zone[1] > 59) return false;
    *seconds = date * MS_SECONDS_PER_DAY + time[0] * 3600 + time[1] * 60 + second[1];
    *seconds += (zone[0] * 3600 + zone[1] * 60) * (is_negative ? 1 : -1);
    return true;
}

/* A moment in ticks, rounded down. False if they do not fit, as nanoseconds may. */
static inline bool ms_ticks(int64_t seconds, int64_t nanoseconds, int64_t per_second, int64_t *ticks) {
    const int64_t part = nanoseconds / (1000000000 / per_second), most = INT64_MAX / per_second;
    if (seconds > most || (seconds == most && part > INT64_MAX % per_second)) return false;
    if (seconds < -most - 1 || (seconds == -most - 1 && part < per_second - 1 - INT64_MAX % per_second)) return false;
    *ticks = seconds < 0 ? (seconds + 1) * per_second + (part - per_second) : seconds * per_second + part;
    return true;
}

/* Elements: values in the type in which the training data stored the column. Text columns keep any value, which is read
 * as text; the integer of a date or timestamp is its ticks. */

/* The text of a value. `room` has MS_NUMBER_BYTES, for numbers. */
static inline const char *ms_text_of(const ms_value *value, char *room, size_t *length) {
    switch (value->kind) {
    case MS_TEXT:
        *length = value->length;
        return value->as.text;
    case MS_BOOLEAN:
        *length = value->as.boolean ? 4 : 5;
        return value->as.boolean ? "true" : "false";
    case MS_INTEGER:
        *length = ms_write_integer(value->as.integer, room);
        return room;
    case MS_NATURAL:
        *length = ms_write_natural(value->as.natural, room);
        return room;
    case MS_REAL:
        *length = ms_write_json(value->as.real, room);
        return room;
    case MS_ABSENT:
        break;
    }
    *length = 0;
    return "";
}

static inline int ms_compare(const char *left, size_t left_length, const char *right, size_t right_length) {
    const size_t common = left_length < right_length ? left_length : right_length;
    const int order = common == 0 ? 0 : memcmp(left, right, common);
    return order != 0 ? order : left_length < right_length ? -1 : left_length > right_length;
}

static inline bool ms_has_term(const ms_term *terms, size_t count, const char *text, size_t length) {
    for (size_t at = 0; at < count; at++) {
        if (ms_compare(terms[at].bytes, terms[at].length, text, length) == 0) return true;
    }
    return false;
}

/* The text without spaces around it. */
static inline const char *ms_trim(const char *text, size_t *length) {
    for (; *length > 0 && ms_is_space(text[*length - 1]); --*length) continue;
    for (; *length > 0 && ms_is_space(*text); --*length) text++;
    return text;
}

static inline bool ms_is_missing_text(const char *text, size_t length) {
    const ms_missing *missing = ms_missing_values();
    if (missing->text_count == 0) return false;
    text = ms_trim(text, &length);
    return ms_has_term(missing->trimmed, missing->text_count, text, length);
}

static inline bool ms_is_missing_integer(const ms_value *value) {
    const ms_missing *missing = ms_missing_values();
    const bool is_negative = value->kind == MS_INTEGER && value->as.integer < 0;
    if (is_negative) {
        for (size_t at = 0; at < missing->integer_count; at++) {
            if (missing->integers[at] == value->as.integer) return true;
        }
        return false;
    }
    const uint64_t natural = value->kind == MS_INTEGER ? (uint64_t)value->as.integer : value->as.natural;
    for (size_t at = 0; at < missing->natural_count; at++) {
        if (missing->naturals[at] == natural) return true;
    }
    return false;
}

static inline bool ms_is_missing_real(double real, bool is_float32) {
    const ms_missing *missing = ms_missing_values();
    for (size_t at = 0; at < missing->real_count; at++) {
        const double listed = is_float32 ? (double)(float)missing->reals[at] : missing->reals[at];
        if (listed == real || (isnan(listed) && isnan(real))) return true;
    }
    return false;
}

/* Describes a value that cannot be used. Always false. */
static inline bool ms_fail(ms_error *error, const char *feature, const ms_column *column, const char *expected,
                           const ms_value *found) {
    char room[MS_NUMBER_BYTES];
    size_t length = 0;
    const char *text = ms_text_of(found, room, &length);
    const bool is_cut = length > 40;
    if (error == NULL) return false;
    if (found->kind == MS_ABSENT) {
        (void)(snprintf(error->message, sizeof error->message, "feature `%.100s`, column `%.100s`: %s", feature,
                        column->name, expected) < 0);
        return false;
    }
    (void)(snprintf(error->message, sizeof error->message, "feature `%.100s`, column `%.100s`: expected %s, found `%.*s`%s",
                    feature, column->name, expected, is_cut ? 40 : (int)length, text, is_cut ? "..." : "") < 0);
    return false;
}

/* Describes a wrong number of values. Always false. */
static inline bool ms_fail_count(ms_error *error, const char *feature, const ms_column *column, const char *expected,
                                 size_t expected_count, size_t found) {
    if (error == NULL) return false;
    (void)(snprintf(error->message, sizeof error->message, "feature `%.100s`, column `%.100s`: expected %s (%lu), found %lu",
                    feature, column->name, expected, (unsigned long)expected_count, (unsigned long)found) < 0);
    return false;
}

/* The nearest number of 32 bits to the text of a double, as if that text were parsed. */
static inline double ms_to_float32(double real) {
    char text[MS_NUMBER_BYTES];
    const float nearest = (float)real;
    const float other = nextafterf(nearest, (double)nearest < real ? HUGE_VALF : -HUGE_VALF);
    if (isnan(real) || (double)nearest == real) return real;
    if (!isinf(nearest) && ((double)nearest + (double)other) / 2 != real) return (double)nearest;
    /* Between two of them, the shortest text of the double decides. */
    if (!ms_parse_number(text, ms_write_real(real, false, text), true, &real)) return (double)NAN;
    return real;
}

/* A whole number in `element`, as a natural number if it is not negative. */
static inline bool ms_whole(const ms_value *value, ms_value *element) {
    double real = 0;
    bool is_negative = false;
    uint64_t magnitude = 0;
    switch (value->kind) {
    case MS_INTEGER:
        is_negative = value->as.integer < 0;
        magnitude = is_negative ? 0 - (uint64_t)value->as.integer : (uint64_t)value->as.integer;
        break;
    case MS_NATURAL:
        magnitude = value->as.natural;
        break;
    case MS_TEXT:
        if (ms_parse_integer(value->as.text, value->length, &is_negative, &magnitude) &&
            (!is_negative || magnitude <= UINT64_C(9223372036854775808))) {
            break;
        }
        if (!ms_parse_number(value->as.text, value->length, false, &real)) return false;
        /* Fall through. */
    case MS_REAL:
        real = value->kind == MS_REAL ? value->as.real : real;
        if (!(fabs(real) < 9007199254740992.0) || real != floor(real)) return false;
        is_negative = real < 0;
        magnitude = (uint64_t)fabs(real);
        break;
    default:
        return false;
    }
    if (!is_negative || magnitude == 0) {
        *element = ms_natural(magnitude);
    } else {
        *element = ms_integer(-(int64_t)(magnitude - 1) - 1);
    }
    return true;
}

/* A value in the type of its column. */
static inline bool ms_convert(const char *feature, const ms_column *column, const ms_value *value, ms_value *element,
                              ms_error *error) {
    double real = 0;
    *element = *value;
    if (value->kind == MS_TEXT) {
        const ms_missing *missing = ms_missing_values();
        if (ms_has_term(missing->exact, missing->text_count, value->as.text, value->length)) *element = ms_absent();
    }
    if (element->kind == MS_ABSENT) return true;
    switch (column->stored) {
    case MS_STORED_TEXT:
        return true;
    case MS_STORED_INTEGER:
        if (ms_whole(value, element) && (element->kind == MS_INTEGER || element->as.natural <= INT64_MAX)) return true;
        return ms_fail(error, feature, column, "an integer", value);
    case MS_STORED_NATURAL:
        if (ms_whole(value, element) && element->kind == MS_NATURAL) return true;
        return ms_fail(error, feature, column, "an integer of at least 0", value);
    case MS_STORED_BOOLEAN:
        if (value->kind == MS_BOOLEAN) return true;
        if (value->kind == MS_TEXT) {
            static const char *const words[] = {"true", "t", "yes", "y", "1", "false", "f", "no", "n", "0"};
            for (size_t at = 0; at < sizeof words / sizeof *words; at++) {
                if (!ms_is_word(value->as.text, value->length, words[at])) continue;
                *element = ms_boolean(at < 5);
                return true;
            }
        } else if (value->kind != MS_REAL && ms_whole(value, element) && element->as.natural < 2) {
            *element = ms_boolean(element->as.natural == 1);
            return true;
        }
        return ms_fail(error, feature, column, "true or false", value);
    case MS_STORED_FLOAT32:
    case MS_STORED_FLOAT64: {
        const bool is_float32 = column->stored == MS_STORED_FLOAT32;
        if (value->kind == MS_INTEGER) {
            real = is_float32 ? (double)(float)value->as.integer : (double)value->as.integer;
        } else if (value->kind == MS_NATURAL) {
            real = is_float32 ? (double)(float)value->as.natural : (double)value->as.natural;
        } else if (value->kind == MS_REAL) {
            real = is_float32 ? ms_to_float32(value->as.real) : value->as.real;
        } else if (value->kind != MS_TEXT || !ms_parse_number(value->as.text, value->length, is_float32, &real)) {
            return ms_fail(error, feature, column, "a number", value);
        }
        *element = ms_real(real);
        return true;
    }
    case MS_STORED_DATE:
    case MS_STORED_TIMESTAMP: {
        const bool is_date = column->stored == MS_STORED_DATE;
        char room[MS_NUMBER_BYTES];
        size_t length;
        int64_t seconds, nanoseconds, ticks;
        const char *text = ms_text_of(value, room, &length);
        if (!ms_parse_moment(text, length, &seconds, &nanoseconds)) {
            const char *expected = is_date ? "a date such as 2026-11-21" : "a timestamp such as 2026-11-21T12:38:00Z";
            return ms_fail(error, feature, column, expected, value);
        }
        if (is_date) {
            *element = ms_integer(ms_divide(seconds, MS_SECONDS_PER_DAY));
            return true;
        }
        if (!ms_ticks(seconds, nanoseconds, column->per_second, &ticks)) {
            return ms_fail(error, feature, column, "a timestamp that fits into 64 bits", value);
        }
        *element = ms_integer(ticks);
        return true;
    }
    }
    return false;
}

/* An element as a number, NaN if it is none. False if it is absent. */
static inline bool ms_number(const ms_column *column, const ms_value *element, double *number) {
    char room[MS_NUMBER_BYTES];
    size_t length;
    const char *text;
    if (element->kind == MS_ABSENT) return false;
    switch (column->stored) {
    case MS_STORED_TEXT:
        text = ms_text_of(element, room, &length);
        if (ms_is_missing_text(text, length)) return false;
        text = ms_trim(text, &length);
        if (ms_parse_number(text, length, false, number)) return true;
        *number = (double)NAN;
        if (length == 4 && memcmp(text, "true", length) == 0) *number = 1;
        if (length == 5 && memcmp(text, "false", length) == 0) *number = 0;
        return true;
    case MS_STORED_INTEGER:
    case MS_STORED_NATURAL:
        *number = element->kind == MS_INTEGER ? (double)element->as.integer : (double)element->as.natural;
        return !ms_is_missing_integer(element);
    case MS_STORED_BOOLEAN:
        *number = element->as.boolean ? 1 : 0;
        return true;
    case MS_STORED_DATE:
    case MS_STORED_TIMESTAMP:
        *number = (double)element->as.integer;
        if (column->stored == MS_STORED_TIMESTAMP) *number /= (double)column->per_second;
        return !ms_is_missing_real(*number, false);
    case MS_STORED_FLOAT32:
    case MS_STORED_FLOAT64:
        *number = element->as.real;
        return !ms_is_missing_real(*number, column->stored == MS_STORED_FLOAT32);
    }
    return false;
}

/* An element as text, in `room` if it is no text. False if it is absent. */
static inline bool ms_text_in(const ms_column *column, const ms_value *element, char *room, const char **text,
                              size_t *length) {
    *text = room;
    if (element->kind == MS_ABSENT) return false;
    switch (column->stored) {
    case MS_STORED_FLOAT32:
    case MS_STORED_FLOAT64: {
        const bool is_float32 = column->stored == MS_STORED_FLOAT32;
        if (ms_is_missing_real(element->as.real, is_float32)) return false;
        *length = ms_write_real(element->as.real, is_float32, room);
        return true;
    }
    case MS_STORED_INTEGER:
    case MS_STORED_NATURAL:
        *text = ms_text_of(element, room, length);
        return !ms_is_missing_integer(element);
    case MS_STORED_BOOLEAN:
        *text = ms_text_of(element, room, length);
        return true;
    case MS_STORED_DATE:
        *length = ms_write_date(element->as.integer, room);
        break;
    case MS_STORED_TIMESTAMP:
        *length = ms_write_timestamp(element->as.integer, column->per_second, column->is_utc, room);
        break;
    case MS_STORED_TEXT:
        *text = ms_text_of(element, room, length);
        break;
    }
    return !ms_is_missing_text(*text, *length);
}

/* sign(x) ln(1 + |x|), by the operations of training (fdlibm). */
static inline double ms_signed_log1p(double value) {
    const double x = fabs(value), u = 1.0 + x, lost = (x - (u - 1.0)) / u;
    uint64_t bits, exponent;
    double mantissa, k, f, s, z, w, r, half;
    memcpy(&bits, &u, sizeof bits);
    exponent = (bits - UINT64_C(0x3fe6a09e667f3bcd)) >> 52;
    bits -= exponent << 52;
    memcpy(&mantissa, &bits, sizeof mantissa);
    k = (double)exponent;
    f = mantissa - 1.0;
    s = f / (2.0 + f);
    z = s * s;
    w = z * z;
    r = w * (3.999999999940942e-1 + w * (2.2222198432149784e-1 + w * 1.5313837699209373e-1)) +
        z * (6.666666666666735e-1 +
             w * (2.857142874366239e-1 + w * (1.818357216161805e-1 + w * 1.4798198605116586e-1)));
    half = 0.5 * f * f;
    return copysign(
        k * 6.931471803691238e-1 - ((half - (s * (half + r) + (k * 1.9082149292705877e-10 + lost))) - f), value);
}

/* The number of boundaries at or below a number. */
static inline size_t ms_bucket(const ms_part *part, double number) {
    size_t first = 0, last = part->boundary_count;
    while (first < last) {
        const size_t middle = first + (last - first) / 2;
        if (part->boundaries[middle] <= number) {
            first = middle + 1;
        } else {
            last = middle;
        }
    }
    return first;
}

/* A number as it is, since the model scales it; NaN if it is absent. */
static inline bool ms_number_of(const ms_feature *feature, const ms_value *value, double *number, ms_error *error) {
    const ms_column *column = &feature->parts[0].column;
    ms_value element;
    double scaled;
    if (!ms_convert(feature->name, column, value, &element, error)) return false;
    if (!ms_number(column, &element, number)) {
        const ms_value absent = ms_absent();
        *number = (double)NAN;
        return feature->may_be_absent ||
               ms_fail(error, feature->name, column, "a value is missing, and the feature has no default", &absent);
    }
    scaled = ((feature->logarithm ? ms_signed_log1p(*number) : *number) - feature->shift) / feature->divisor;
    return isfinite((float)scaled) ? true : ms_fail(error, feature->name, column, "a number", value);
}

/* The numbers of a vector. */
static inline bool ms_numbers_of(const ms_feature *feature, ms_values values, double *numbers, ms_error *error) {
    const ms_value absent = ms_absent();
    if (values.count != 0 && values.count != feature->size) {
        return ms_fail_count(error, feature->name, &feature->parts[0].column, "as many numbers as the feature's `size`",
                             feature->size, values.count);
    }
    for (size_t at = 0; at < feature->size; at++) {
        const ms_value *value = values.count == 0 ? &absent : &values.values[at];
        if (!ms_number_of(feature, value, &numbers[at], error)) return false;
    }
    return true;
}

/* The value of a list, for a feature with one value. */
static inline bool ms_only(const ms_feature *feature, size_t part, ms_values values, ms_value *value, ms_error *error) {
    *value = values.count > 0 ? values.values[0] : ms_absent();
    return values.count <= 1 || ms_fail_count(error, feature->name, &feature->parts[part].column,
                                              "one value, because the feature is not multi-valued", 1, values.count);
}

/* The fingerprint of a part of a cross. It is absent if `is_absent`. */
static inline bool ms_fingerprint_of(const ms_feature *feature, size_t place, const ms_value *value, bool *is_absent,
                                     uint64_t *fingerprint, ms_error *error) {
    const ms_part *part = &feature->parts[place];
    char room[MS_NUMBER_BYTES];
    const char *text = room;
    size_t length = 0;
    ms_value element;
    double number = 0;
    if (!ms_convert(feature->name, &part->column, value, &element, error)) return false;
    if (part->boundary_count > 0) {
        *is_absent = !ms_number(&part->column, &element, &number);
        if (!*is_absent && isnan(number)) return ms_fail(error, feature->name, &part->column, "a number", value);
        length = ms_write_natural(ms_bucket(part, number), room);
    } else {
        *is_absent = !ms_text_in(&part->column, &element, room, &text, &length);
    }
    *fingerprint = *is_absent ? 0 : ms_fingerprint64(text, length);
    return true;
}

/* The id of a value of each column of a feature. */
static inline bool ms_id_of(const ms_feature *feature, const ms_value *values, int64_t *id, ms_error *error) {
    const ms_part *part = &feature->parts[0];
    char room[MS_NUMBER_BYTES];
    const char *text;
    size_t length = 0, first = 0, last = feature->term_count;
    ms_value element;
    double number = 0;
    *id = feature->absent;
    if (feature->kind == MS_CROSSED) {
        uint64_t crossed = MS_CROSS_KEY, fingerprint;
        bool is_absent, has_absent = false;
        for (size_t place = 0; place < feature->part_count; place++) {
            if (!ms_fingerprint_of(feature, place, &values[place], &is_absent, &fingerprint, error)) return false;
            has_absent |= is_absent;
            crossed = ms_cat64(crossed, fingerprint);
        }
        if (!has_absent) *id = (int64_t)(crossed % feature->buckets);
        return true;
    }
    if (!ms_convert(feature->name, &part->column, values, &element, error)) return false;
    if (feature->kind == MS_BUCKETIZED) {
        if (!ms_number(&part->column, &element, &number)) return true;
        if (isnan(number)) return ms_fail(error, feature->name, &part->column, "a number", values);
        *id = (int64_t)ms_bucket(part, number);
        return true;
    }
    if (feature->kind == MS_IDENTITY) {
        const bool is_absent = !ms_number(&part->column, &element, &number);
        const bool is_within = number >= 0 && number < (double)feature->buckets;
        if (is_absent) return true;
        if (isinf(number) || number != floor(number) || (!is_within && !feature->is_missing_beyond)) {
            char expected[64];
            (void)(snprintf(expected, sizeof expected, "a whole number from 0 to %lu", (unsigned long)feature->buckets - 1) < 0);
            return ms_fail(error, feature->name, &part->column, expected, values);
        }
        if (is_within) *id = (int64_t)number;
        return true;
    }
    if (!ms_text_in(&part->column, &element, room, &text, &length)) return true;
    while (first < last) {
        const size_t middle = first + (last - first) / 2;
        const ms_term *term = &feature->terms[middle];
        const int order = ms_compare(term->bytes, term->length, text, length);
        if (order == 0) {
            *id = term->id;
            return true;
        }
        if (order < 0) {
            first = middle + 1;
        } else {
            last = middle;
        }
    }
    *id = (int64_t)(feature->term_count + ms_fingerprint64(text, length) % feature->buckets);
    return true;
}

/* The ids of a multi-valued feature without absent values, and their weights if it has some; at most `size`. */
static inline bool ms_ids_of(const ms_feature *feature, ms_values values, ms_values weights, int64_t *ids,
                             float *weights_of_ids, size_t *count, ms_error *error) {
    ms_value element;
    double number = 0;
    *count = 0;
    for (size_t at = 0; at < values.count; at++) {
        if (!ms_convert(feature->name, &feature->parts[0].column, &values.values[at], &element, error)) return false;
    }
    for (size_t at = 0; feature->weights != NULL && at < weights.count; at++) {
        if (!ms_convert(feature->name, feature->weights, &weights.values[at], &element, error)) return false;
    }
    if (feature->weights != NULL && values.count != weights.count) {
        return ms_fail_count(error, feature->name, feature->weights, "one weight per value", values.count, weights.count);
    }
    for (size_t at = 0; at < values.count; at++) {
        int64_t id;
        if (!ms_id_of(feature, &values.values[at], &id, error)) return false;
        if (id == (int64_t)feature->absent) continue;
        if (*count == feature->size) break;
        if (feature->weights != NULL) {
            if (!ms_convert(feature->name, feature->weights, &weights.values[at], &element, error)) return false;
            if (!ms_number(feature->weights, &element, &number) || !isfinite((float)number)) {
                return ms_fail(error, feature->name, feature->weights, "a finite weight", &weights.values[at]);
            }
            weights_of_ids[*count] = (float)number;
        }
        ids[(*count)++] = id;
    }
    return true;
}

/* Appends the ids of all combinations of values from column `place` on, of which the last varies fastest. */
static inline bool ms_extend(const ms_feature *feature, const ms_values *columns, size_t place, uint64_t crossed,
                             int64_t *ids, size_t *count, ms_error *error) {
    if (place == feature->part_count) {
        ids[(*count)++] = (int64_t)(crossed % feature->buckets);
        return true;
    }
    for (size_t at = 0; at < columns[place].count && *count < feature->size; at++) {
        uint64_t fingerprint;
        bool is_absent;
        const ms_value *value = &columns[place].values[at];
        if (!ms_fingerprint_of(feature, place, value, &is_absent, &fingerprint, error)) return false;
        if (is_absent) continue;
        if (!ms_extend(feature, columns, place + 1, ms_cat64(crossed, fingerprint), ids, count, error)) return false;
    }
    return true;
}

/* The ids of a multi-valued cross, at most `size`. */
static inline bool ms_crossed_ids_of(const ms_feature *feature, const ms_values *columns, int64_t *ids, size_t *count,
                                     ms_error *error) {
    bool is_empty = false;
    *count = 0;
    for (size_t place = 0; place < feature->part_count; place++) {
        size_t present = 0;
        for (size_t at = 0; at < columns[place].count; at++) {
            uint64_t fingerprint;
            bool is_absent;
            const ms_value *value = &columns[place].values[at];
            if (!ms_fingerprint_of(feature, place, value, &is_absent, &fingerprint, error)) return false;
            present += !is_absent;
        }
        is_empty |= present == 0;
    }
    return is_empty || ms_extend(feature, columns, 0, MS_CROSS_KEY, ids, count, error);
}

/* The job's features, written by the export. */

/* MS_TABLES */

#endif
