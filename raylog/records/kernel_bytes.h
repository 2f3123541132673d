/* What all of the kernel (kernel.c) needs: its codes, sizes of the format, and how bytes, varints, text and bitmaps are read and written. */

#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define RK_EXPORT __attribute__((visibility("default")))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum {
    RK_OK = 0,
    RK_BAD_BATCH = 1,      /* a header that is cut off, or a length or a magic byte that cannot be */
    RK_COMPRESSED = 2,     /* a batch whose records were not inflated by the caller */
    RK_BAD_VARINT = 3,     /* the records end inside a varint, or it has more than ten bytes */
    RK_BAD_LENGTH = 4,     /* a key, a value or a header that is longer than what is left */
    RK_BAD_HEADERS = 5,    /* a negative number of headers, or a header without a key */
    RK_BAD_TEXT = 6,       /* a header's key that is no UTF-8 */
    RK_BAD_RECORD = 7,     /* a record that takes more or fewer bytes than it says */
    RK_TRAILING = 8,       /* bytes behind the last record */
    RK_NO_ROOM = 9,        /* the buffers are too small: the bytes have changed since they were measured */
    RK_BAD_COLUMN = 10,    /* an Arrow column whose ends do not lie in its data */
    RK_NO_HEADER_KEY = 11, /* a header without a key, in a column to be written */
    RK_TOO_LARGE = 12,     /* a record that is larger than allowed */
    RK_BAD_OFFSET = 13,    /* a record whose offset delta is not its place in the batch */
    RK_BAD_COUNT = 14,     /* more records than so many bytes can hold, or none */
    RK_NO_KEY = 15,        /* a record without a key, where one is needed */
    RK_BAD_TIMESTAMP = 16, /* a record whose timestamp lies outside the bounds */
    RK_UNUSUAL = 17,       /* a batch that has to be looked at more closely */
};

#define HEADER_SIZE 61
#define LOG_OVERHEAD 12
#define RECORD_OVERHEAD_MAX 21
#define HEADER_OVERHEAD_MAX 10
#define RECORD_SIZE_MIN 7 /* length, attributes, two deltas, null key, null value, no headers */
#define NO_TIMESTAMP (-1)

/* ------------------------------------------------------------------ bytes */

static inline uint16_t load16(const uint8_t *p) { uint16_t x; memcpy(&x, p, 2); return __builtin_bswap16(x); }
static inline uint32_t load32(const uint8_t *p) { uint32_t x; memcpy(&x, p, 4); return __builtin_bswap32(x); }
static inline uint64_t load64(const uint8_t *p) { uint64_t x; memcpy(&x, p, 8); return __builtin_bswap64(x); }

/* Zigzag varint of at most ten bytes; the position behind it, or NULL. Bits beyond the 64th are dropped. */
static inline const uint8_t *read_varint(const uint8_t *p, const uint8_t *end, int64_t *out) {
    uint64_t raw = 0;
    if (LIKELY(p < end) && LIKELY(*p < 0x80)) {
        raw = *p++;
    } else {
        int shift = 0;
        uint8_t byte;
        do {
            if (UNLIKELY(p >= end) || UNLIKELY(shift > 63)) return NULL;
            byte = *p++;
            raw |= (uint64_t)(byte & 0x7f) << shift;
            shift += 7;
        } while (byte & 0x80);
    }
    *out = (int64_t)((raw >> 1) ^ (0 - (raw & 1)));
    return p;
}

static inline uint64_t zigzag(int64_t value) { return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63); }

static inline int64_t varint_size(int64_t value) {
    return (int64_t)(64 - __builtin_clzll(zigzag(value) | 1) + 6) / 7;
}

static inline uint8_t *write_varint(uint8_t *p, int64_t value) {
    uint64_t raw = zigzag(value);
    while (raw > 0x7f) {
        *p++ = (uint8_t)(0x80 | (raw & 0x7f));
        raw >>= 7;
    }
    *p++ = (uint8_t)raw;
    return p;
}

/* Whether bytes are UTF-8 as Python's strict decoder sees it: no overlong forms, no surrogates, nothing above U+10FFFF. */
static int is_utf8(const uint8_t *p, int64_t size) {
    const uint8_t *end = p + size;
    while (p < end) {
        uint8_t lead = *p++;
        if (lead < 0x80) continue;
        int more;
        uint8_t low = 0x80, high = 0xbf;
        if (lead >= 0xc2 && lead <= 0xdf) more = 1;
        else if (lead >= 0xe0 && lead <= 0xef) {
            more = 2;
            if (lead == 0xe0) low = 0xa0;
            if (lead == 0xed) high = 0x9f;
        } else if (lead >= 0xf0 && lead <= 0xf4) {
            more = 3;
            if (lead == 0xf0) low = 0x90;
            if (lead == 0xf4) high = 0x8f;
        } else return 0;
        if (end - p < more) return 0;
        if (*p < low || *p > high) return 0;
        for (int i = 1; i < more; i++) if ((p[i] & 0xc0) != 0x80) return 0;
        p += more;
    }
    return 1;
}

static inline void set_bit(uint8_t *bits, int64_t i) { bits[i >> 3] |= (uint8_t)(1 << (i & 7)); }
static inline int get_bit(const uint8_t *bits, int64_t i) { return bits == NULL || (bits[i >> 3] >> (i & 7) & 1); }
