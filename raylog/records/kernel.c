/* Records between Kafka's batches and Arrow's columns, without a Python object per record.
 *
 * Plain C over buffers that the caller owns: no allocation, no Python headers, no state. Called through ctypes
 * (raylog/records/kernel.py), which lets go of the GIL. Every function gives 0 or one of the codes below; what it reads
 * may be hostile and may even change while it is read: each length is compared with what is left before it is used, and
 * nothing is written beyond the room that the caller gave.
 *
 * Reading takes two passes over *runs*: whole, uncompressed batches of format 2 that follow each other in one buffer
 * (raylog/records/batch.py draws the header, raylog/records/pure.py the records, and is the twin that the tests hold
 * this against). rk_measure checks everything and counts; rk_fill writes the columns that it is given room for.
 * Control batches, codecs, checksums and aborted transactions are the caller's (rk_check_batches checks checksums alone).
 *
 * Checking: rk_check_records judges the records of one produced batch, before a leader appends it. rk_is_sound_batch does that and all
 * the rest for a batch that nothing is unusual about.
 *
 * Writing: rk_check_rows judges all rows once, rk_partition_keys hashes keys as Kafka's default partitioner does,
 * rk_group_rows sorts row numbers by partition, and then rk_next_batch and rk_encode_records cut and write one
 * batch's records after the other.
 *
 * Arrow: a binary column is `ends` (one more than rows; row i lies between ends[i] and ends[i + 1]), `data`, and a bitmap
 * `valid`, least significant bit first, that may be missing where nothing is null.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef RK_DIGEST
#define RK_DIGEST 0
#endif

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

RK_EXPORT uint32_t rk_digest(void) { return RK_DIGEST; }

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

/* ------------------------------------------------------------------ reading */

typedef struct {
    const uint8_t *data;
    int64_t size;
    int64_t start_offset; /* records below it are left out */
    int64_t offset_end;   /* and those from here on */
    int64_t records;      /* written by rk_measure: how many are left */
} rk_run;

typedef struct {
    int64_t records;
    int64_t null_keys, key_bytes;
    int64_t null_values, value_bytes;
    int64_t headers, header_key_bytes;
    int64_t null_header_values, header_value_bytes;
    int64_t bad_run;      /* where reading stopped: which run, */
    int64_t bad_position; /* and which of its bytes the broken batch starts at */
} rk_sizes;

typedef struct {
    int32_t *ends; /* NULL: not asked for */
    uint8_t *valid; /* NULL: nothing is null */
    uint8_t *data;
    int64_t room; /* bytes of data */
} rk_column;

typedef struct {
    int64_t record_room, header_room; /* bitmaps have a bit for each, ends one more */
    int64_t *offsets, *timestamps;    /* NULL: not asked for */
    int32_t *timestamp_types;
    rk_column key, value;
    int32_t *header_ends;
    rk_column header_key, header_value; /* together with header_ends, or not at all */
} rk_columns;

typedef struct {
    uint64_t base_offset, base_timestamp, max_timestamp;
    int32_t is_append_time;
    int32_t count;
    const uint8_t *records, *end;
} batch;

typedef struct {
    int64_t offset, timestamp;
    const uint8_t *key, *value, *headers; /* NULL: null; headers: the first one's length */
    int64_t key_size, value_size, header_count;
} record;

static int read_batch(const uint8_t *p, const uint8_t *end, batch *b) {
    if (end - p < HEADER_SIZE) return RK_BAD_BATCH;
    int64_t size = LOG_OVERHEAD + (int64_t)(int32_t)load32(p + 8);
    if (size < HEADER_SIZE || size > end - p || p[16] != 2) return RK_BAD_BATCH;
    uint16_t attributes = load16(p + 21);
    if (attributes & 7) return RK_COMPRESSED;
    b->base_offset = load64(p);
    b->is_append_time = attributes >> 3 & 1;
    b->base_timestamp = load64(p + 27);
    b->max_timestamp = load64(p + 35);
    b->count = (int32_t)load32(p + 57);
    b->records = p + HEADER_SIZE;
    b->end = p + size;
    return RK_OK;
}

/* One header at p; the position behind it, or NULL with *code set. */
static inline const uint8_t *read_header(const uint8_t *p, const uint8_t *end, const uint8_t **key, int64_t *key_size,
                                         const uint8_t **value, int64_t *value_size, int *code) {
    *code = RK_BAD_VARINT;
    if (!(p = read_varint(p, end, key_size))) return NULL;
    if (*key_size < 0) { *code = RK_BAD_HEADERS; return NULL; }
    if (*key_size > end - p) { *code = RK_BAD_LENGTH; return NULL; }
    *key = p;
    p += *key_size;
    if (!(p = read_varint(p, end, value_size))) return NULL;
    *value = NULL;
    if (*value_size < 0) { *value_size = 0; return p; }
    if (*value_size > end - p) { *code = RK_BAD_LENGTH; return NULL; }
    *value = p;
    return p + *value_size;
}

/* The record at p, all of it checked except the headers, which the caller walks; *next is where they begin. */
static inline int read_record(const batch *b, const uint8_t *p, record *r, int64_t *size, const uint8_t **body) {
    const uint8_t *end = b->end;
    int64_t attributes, timestamp_delta, offset_delta;
    if (!(p = read_varint(p, end, size))) return RK_BAD_VARINT;
    *body = p;
    if (!(p = read_varint(p, end, &attributes))) return RK_BAD_VARINT;
    if (!(p = read_varint(p, end, &timestamp_delta))) return RK_BAD_VARINT;
    if (!(p = read_varint(p, end, &offset_delta))) return RK_BAD_VARINT;
    if (!(p = read_varint(p, end, &r->key_size))) return RK_BAD_VARINT;
    r->key = NULL;
    if (r->key_size >= 0) {
        if (r->key_size > end - p) return RK_BAD_LENGTH;
        r->key = p;
        p += r->key_size;
    } else r->key_size = 0;
    if (!(p = read_varint(p, end, &r->value_size))) return RK_BAD_VARINT;
    r->value = NULL;
    if (r->value_size >= 0) {
        if (r->value_size > end - p) return RK_BAD_LENGTH;
        r->value = p;
        p += r->value_size;
    } else r->value_size = 0;
    if (!(p = read_varint(p, end, &r->header_count))) return RK_BAD_VARINT;
    if (r->header_count < 0) return RK_BAD_HEADERS;
    r->headers = p;
    r->offset = (int64_t)(b->base_offset + (uint64_t)offset_delta);
    r->timestamp = (int64_t)(b->is_append_time ? b->max_timestamp : b->base_timestamp + (uint64_t)timestamp_delta);
    return RK_OK;
}

static int measure_batch(const batch *b, rk_run *run, rk_sizes *sizes) {
    const uint8_t *p = b->records;
    for (int32_t i = 0; i < b->count; i++) {
        record r;
        int64_t size, header_key_bytes = 0, header_value_bytes = 0, null_header_values = 0;
        const uint8_t *body;
        int code = read_record(b, p, &r, &size, &body);
        if (UNLIKELY(code)) return code;
        p = r.headers;
        for (int64_t h = 0; h < r.header_count; h++) {
            const uint8_t *key, *value;
            int64_t key_size, value_size;
            if (!(p = read_header(p, b->end, &key, &key_size, &value, &value_size, &code))) return code;
            if (!is_utf8(key, key_size)) return RK_BAD_TEXT;
            header_key_bytes += key_size;
            header_value_bytes += value_size;
            null_header_values += value == NULL;
        }
        if (UNLIKELY(p - body != size)) return RK_BAD_RECORD;
        if (r.offset < run->start_offset || r.offset >= run->offset_end) continue;
        run->records++;
        sizes->records++;
        sizes->null_keys += r.key == NULL;
        sizes->key_bytes += r.key_size;
        sizes->null_values += r.value == NULL;
        sizes->value_bytes += r.value_size;
        sizes->headers += r.header_count;
        sizes->header_key_bytes += header_key_bytes;
        sizes->header_value_bytes += header_value_bytes;
        sizes->null_header_values += null_header_values;
    }
    return p == b->end ? RK_OK : RK_TRAILING;
}

/* Checks every byte of the runs and counts what they hold. At a broken batch it stops: `sizes` and the runs' `records` are
 * those of the batches before it, and `bad_run`, `bad_position` say where it is. */
RK_EXPORT int rk_measure(rk_run *runs, int64_t run_count, rk_sizes *sizes) {
    memset(sizes, 0, sizeof *sizes);
    for (int64_t i = 0; i < run_count; i++) runs[i].records = 0;
    for (int64_t i = 0; i < run_count; i++) {
        rk_run *run = &runs[i];
        const uint8_t *p = run->data, *end = run->data + run->size;
        while (p < end) {
            batch b;
            rk_sizes so_far = *sizes;
            int64_t records_so_far = run->records;
            int code = read_batch(p, end, &b);
            if (!code) code = measure_batch(&b, run, sizes);
            if (code) {
                *sizes = so_far;
                run->records = records_so_far;
                sizes->bad_run = i;
                sizes->bad_position = p - run->data;
                return code;
            }
            p = b.end;
        }
    }
    return RK_OK;
}

typedef struct {
    int64_t key, value, headers, header_key, header_value; /* bytes and headers written so far */
} written;

static inline int put(const rk_column *column, int64_t index, const uint8_t *content, int64_t size, int64_t *used) {
    if (UNLIKELY(size > column->room - *used)) return RK_NO_ROOM;
    if (content == NULL) {
        if (UNLIKELY(column->valid == NULL)) return RK_NO_ROOM;
    } else {
        if (size) memcpy(column->data + *used, content, (size_t)size);
        if (column->valid != NULL) set_bit(column->valid, index);
    }
    *used += size;
    column->ends[index + 1] = (int32_t)*used;
    return RK_OK;
}

static int fill_batch(const batch *b, const rk_run *run, const rk_columns *columns, int64_t *index, written *w) {
    const uint8_t *p = b->records;
    for (int32_t i = 0; i < b->count; i++) {
        record r;
        int64_t size;
        const uint8_t *body;
        int code = read_record(b, p, &r, &size, &body);
        if (UNLIKELY(code)) return code;
        if (UNLIKELY(size < r.headers - body || size > b->end - body)) return RK_BAD_RECORD;
        p = body + size;
        if (r.offset < run->start_offset || r.offset >= run->offset_end) continue;
        int64_t at = *index;
        if (UNLIKELY(at >= columns->record_room)) return RK_NO_ROOM;
        if (columns->offsets != NULL) columns->offsets[at] = r.offset;
        if (columns->timestamps != NULL) columns->timestamps[at] = r.timestamp;
        if (columns->timestamp_types != NULL) columns->timestamp_types[at] = b->is_append_time;
        if (columns->key.ends != NULL && (code = put(&columns->key, at, r.key, r.key_size, &w->key))) return code;
        if (columns->value.ends != NULL && (code = put(&columns->value, at, r.value, r.value_size, &w->value))) return code;
        if (columns->header_ends != NULL) {
            const uint8_t *h = r.headers;
            if (UNLIKELY(r.header_count > columns->header_room - w->headers)) return RK_NO_ROOM;
            for (int64_t n = 0; n < r.header_count; n++) {
                const uint8_t *key, *value;
                int64_t key_size, value_size;
                if (!(h = read_header(h, p, &key, &key_size, &value, &value_size, &code))) return code;
                if (!is_utf8(key, key_size)) return RK_BAD_TEXT;
                if ((code = put(&columns->header_key, w->headers, key, key_size, &w->header_key))) return code;
                if ((code = put(&columns->header_value, w->headers, value, value_size, &w->header_value))) return code;
                w->headers++;
            }
            columns->header_ends[at + 1] = (int32_t)w->headers;
        }
        (*index)++;
    }
    return RK_OK;
}

static int begin(const rk_column *column, int64_t count) {
    if (column->ends == NULL) return RK_OK;
    if (column->room > INT32_MAX) return RK_NO_ROOM;
    column->ends[0] = 0;
    if (column->valid != NULL) memset(column->valid, 0, (size_t)((count + 7) / 8));
    return RK_OK;
}

/* Writes the columns that there is room for. RK_NO_ROOM or another code only if the bytes have changed since rk_measure. */
RK_EXPORT int rk_fill(const rk_run *runs, int64_t run_count, const rk_columns *columns) {
    int64_t index = 0;
    written w = {0, 0, 0, 0, 0};
    if (columns->record_room > INT32_MAX || columns->header_room > INT32_MAX) return RK_NO_ROOM;
    if (begin(&columns->key, columns->record_room) || begin(&columns->value, columns->record_room)) return RK_NO_ROOM;
    if (columns->header_ends != NULL) {
        columns->header_ends[0] = 0;
        if (begin(&columns->header_key, columns->header_room)) return RK_NO_ROOM;
        if (begin(&columns->header_value, columns->header_room)) return RK_NO_ROOM;
    }
    for (int64_t i = 0; i < run_count; i++) {
        const uint8_t *p = runs[i].data, *end = runs[i].data + runs[i].size;
        while (p < end) {
            batch b;
            int code = read_batch(p, end, &b);
            if (!code) code = fill_batch(&b, &runs[i], columns, &index, &w);
            if (code) return code;
            p = b.end;
        }
    }
    if (index != columns->record_room) return RK_NO_ROOM;
    if (columns->header_ends != NULL && w.headers != columns->header_room) return RK_NO_ROOM;
    return RK_OK;
}

/* ------------------------------------------------------------------ checking */

typedef struct {
    int32_t index; /* of the record in its batch */
    int32_t code;  /* RK_NO_KEY or RK_BAD_TIMESTAMP */
    int64_t timestamp;
} rk_fault;

typedef struct {
    rk_fault *faults; /* the first ones */
    int64_t fault_room;
    int64_t fault_count; /* of all, which may be more than there is room for */
    int64_t bad_record;  /* where a batch that breaks the format was given up */
} rk_report;

/* A varint as Kafka's clients read an int: at most five bytes, and nothing beyond its 32 bits. Other readers would drop such bits
 * or keep them, so bytes that have them mean nothing. */
static inline const uint8_t *read_varint32(const uint8_t *p, const uint8_t *end, int64_t *out) {
    if (LIKELY(p < end) && LIKELY(*p < 0x80)) {
        *out = (int64_t)(*p >> 1) ^ -(int64_t)(*p & 1);
        return p + 1;
    }
    if (LIKELY(end - p > 1) && LIKELY(p[1] < 0x80)) {
        uint32_t raw = (uint32_t)(p[0] & 0x7f) | (uint32_t)p[1] << 7;
        *out = (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
        return p + 2;
    }
    const uint8_t *start = p;
    int64_t value;
    if (!(p = read_varint(p, end, &value)) || p - start > 5 || value != (int32_t)value) return NULL;
    *out = value;
    return p;
}

/* A key or a value at p; the position behind it, or NULL with *code set. */
static inline const uint8_t *skip_content(const uint8_t *p, const uint8_t *end, int *is_null, int *code) {
    int64_t size;
    if (!(p = read_varint32(p, end, &size))) { *code = RK_BAD_VARINT; return NULL; }
    *is_null = size < 0;
    if (size < 0) return p;
    if (size > end - p) { *code = RK_BAD_LENGTH; return NULL; }
    return p + size;
}

static const uint8_t *skip_headers(const uint8_t *p, const uint8_t *end, int64_t count, int *code) {
    for (int64_t h = 0; h < count; h++) {
        const uint8_t *key;
        int64_t key_size;
        int is_null;
        if (!(p = read_varint32(p, end, &key_size))) { *code = RK_BAD_VARINT; return NULL; }
        if (key_size < 0) { *code = RK_BAD_HEADERS; return NULL; }
        if (key_size > end - p) { *code = RK_BAD_LENGTH; return NULL; }
        key = p;
        if (!is_utf8(key, key_size)) { *code = RK_BAD_TEXT; return NULL; }
        if (!(p = skip_content(p + key_size, end, &is_null, code))) return NULL;
    }
    return p;
}

/* Judges the records of one batch, which lie inflated in data[start] up to data[end] and of which its header says that they are
 * `count`: that they fill these bytes exactly, each as long as it says, with the offset deltas 0, 1, 2, ..., and that every reader
 * will understand them. Then, unless LONG bounds leave it open, that each timestamp but NO_TIMESTAMP lies within oldest and newest,
 * and, with needs_key, that each has a key.
 *
 * The first fault is the result. With a report those of the last two kinds do not end the walk: they are counted, and the first ones
 * are listed. A fault of the format ends it in either case. */
RK_EXPORT int rk_check_records(const uint8_t *data, int64_t start, int64_t end, int64_t count, int64_t base_timestamp,
                               int32_t needs_key, int64_t oldest, int64_t newest, rk_report *report) {
    const uint8_t *p = data + start, *stop = data + end;
    int result = RK_OK;
    if (report != NULL) report->fault_count = report->bad_record = 0;
    if (count <= 0 || count > (end - start) / RECORD_SIZE_MIN) return RK_BAD_COUNT;
    for (int64_t i = 0; i < count; i++) {
        int64_t size, timestamp_delta, offset_delta, header_count;
        int no_key, no_value, code = RK_OK;
        const uint8_t *body, *body_end;
        if (UNLIKELY(!(body = read_varint32(p, stop, &size)))) code = RK_BAD_VARINT;
        else if (UNLIKELY(size < 0 || size > stop - body)) code = RK_BAD_LENGTH;
        else {
            body_end = body + size;
            __builtin_prefetch((const void *)((uintptr_t)body + 16 * (uintptr_t)size)); /* a guess: records are alike */
            if (UNLIKELY(size == 0 || *body >= 0x80)) code = RK_BAD_RECORD; /* attributes that some readers take for a varint */
            else if (UNLIKELY(!(p = read_varint(body + 1, body_end, &timestamp_delta)))) code = RK_BAD_VARINT;
            else if (UNLIKELY(!(p = read_varint32(p, body_end, &offset_delta)))) code = RK_BAD_VARINT;
            else if (UNLIKELY(!(p = skip_content(p, body_end, &no_key, &code)))) {}
            else if (UNLIKELY(!(p = skip_content(p, body_end, &no_value, &code)))) {}
            else if (UNLIKELY(!(p = read_varint32(p, body_end, &header_count)))) code = RK_BAD_VARINT;
            else if (UNLIKELY(header_count < 0)) code = RK_BAD_HEADERS;
            else if (UNLIKELY(header_count > 0) && !(p = skip_headers(p, body_end, header_count, &code))) {}
            else if (UNLIKELY(p != body_end)) code = RK_BAD_RECORD;
            else if (UNLIKELY(offset_delta != i)) code = RK_BAD_OFFSET;
        }
        if (UNLIKELY(code)) {
            if (report != NULL) report->bad_record = i;
            return code;
        }
        p = body_end; /* equal, but the processor need not have read all of this record to begin with the next */
        int64_t timestamp = (int64_t)((uint64_t)base_timestamp + (uint64_t)timestamp_delta);
        if (needs_key && no_key) code = RK_NO_KEY;
        else if (UNLIKELY(timestamp < oldest || timestamp > newest) && timestamp != NO_TIMESTAMP) code = RK_BAD_TIMESTAMP;
        if (LIKELY(!code)) continue;
        if (report == NULL) return code;
        if (!result) result = code;
        if (report->fault_count < report->fault_room) {
            rk_fault *fault = &report->faults[report->fault_count];
            fault->index = (int32_t)i;
            fault->code = code;
            fault->timestamp = timestamp;
        }
        report->fault_count++;
    }
    if (p != stop) {
        if (report != NULL) report->bad_record = count;
        return RK_TRAILING;
    }
    return result;
}

/* ------------------------------------------------------------------ writing */

typedef struct {
    const uint8_t *valid; /* NULL: nothing is null */
    const void *ends;     /* NULL: everything is null */
    const uint8_t *data;
    int64_t data_size;
    int64_t first; /* row 0 is this one of `valid` and `ends` */
    int64_t count; /* rows from there on */
    int32_t is_wide; /* ends are of 64 bits */
} rk_binary;

typedef struct {
    int64_t count;
    rk_binary key, value;
    const int64_t *timestamps; /* NULL: none has one */
    const uint8_t *timestamp_valid;
    int64_t timestamp_first;
    int64_t now_ms; /* the timestamp of those without one */
    const int32_t *header_ends; /* NULL: no headers */
    const uint8_t *header_valid;
    int64_t header_first;
    rk_binary header_key, header_value;
} rk_rows;

typedef struct {
    int64_t bad_row;       /* of RK_TOO_LARGE, RK_BAD_COLUMN, RK_NO_HEADER_KEY */
    int64_t bad_size;      /* of RK_TOO_LARGE: bytes of that record, at most */
    int64_t keyless;       /* rows without a key */
    int64_t keyless_bytes; /* at most */
} rk_row_sizes;

typedef struct {
    int64_t count, records_size;
    int64_t base_timestamp, max_timestamp;
} rk_batch_plan;

/* The content of a row: 1 and where it is, 0 for null, −1 where its ends cannot be. */
static inline int row_of(const rk_binary *column, int64_t row, const uint8_t **content, int64_t *size) {
    *content = NULL;
    *size = 0;
    if (column->ends == NULL) return 0;
    if (UNLIKELY(row < 0 || row >= column->count)) return -1;
    int64_t at = column->first + row;
    if (!get_bit(column->valid, at)) return 0;
    int64_t start, end;
    if (column->is_wide) {
        start = ((const int64_t *)column->ends)[at];
        end = ((const int64_t *)column->ends)[at + 1];
    } else {
        start = ((const int32_t *)column->ends)[at];
        end = ((const int32_t *)column->ends)[at + 1];
    }
    if (UNLIKELY(start < 0 || start > end || end > column->data_size)) return -1;
    *content = column->data + start;
    *size = end - start;
    return 1;
}

static inline int64_t timestamp_of(const rk_rows *rows, int64_t row) {
    if (rows->timestamps == NULL || !get_bit(rows->timestamp_valid, rows->timestamp_first + row)) return rows->now_ms;
    return rows->timestamps[rows->timestamp_first + row];
}

static inline int headers_of(const rk_rows *rows, int64_t row, int64_t *start, int64_t *end) {
    *start = *end = 0;
    if (rows->header_ends == NULL || !get_bit(rows->header_valid, rows->header_first + row)) return 0;
    *start = rows->header_ends[rows->header_first + row];
    *end = rows->header_ends[rows->header_first + row + 1];
    return *start < 0 || *start > *end || *end > rows->header_key.count ? -1 : 0;
}

/* Judges every row once: columns that hold together, no header without a key, no record above `record_bytes_max`. */
RK_EXPORT int rk_check_rows(const rk_rows *rows, int64_t record_bytes_max, rk_row_sizes *sizes) {
    memset(sizes, 0, sizeof *sizes);
    for (int64_t row = 0; row < rows->count; row++) {
        const uint8_t *content;
        int64_t key_size, value_size, start, end;
        sizes->bad_row = row;
        int has_key = row_of(&rows->key, row, &content, &key_size);
        if (has_key < 0 || row_of(&rows->value, row, &content, &value_size) < 0) return RK_BAD_COLUMN;
        if (headers_of(rows, row, &start, &end)) return RK_BAD_COLUMN;
        int64_t size = RECORD_OVERHEAD_MAX + key_size + value_size;
        for (int64_t h = start; h < end; h++) {
            int64_t part;
            int has = row_of(&rows->header_key, h, &content, &part);
            if (has <= 0) return has ? RK_BAD_COLUMN : RK_NO_HEADER_KEY;
            size += HEADER_OVERHEAD_MAX + part;
            if (row_of(&rows->header_value, h, &content, &part) < 0) return RK_BAD_COLUMN;
            size += part;
            if (size > record_bytes_max) break;
        }
        if (size > record_bytes_max) {
            sizes->bad_size = size;
            return RK_TOO_LARGE;
        }
        if (!has_key) {
            sizes->keyless++;
            sizes->keyless_bytes += size;
        }
    }
    sizes->bad_row = -1;
    return RK_OK;
}

static uint32_t murmur2(const uint8_t *data, int64_t size) {
    const uint32_t m = 0x5bd1e995u;
    uint32_t h = 0x9747b28cu ^ (uint32_t)size;
    for (; size >= 4; data += 4, size -= 4) {
        uint32_t k;
        memcpy(&k, data, 4);
        k *= m;
        k ^= k >> 24;
        k *= m;
        h = h * m ^ k;
    }
    switch (size) {
        case 3: h ^= (uint32_t)data[2] << 16; /* fall through */
        case 2: h ^= (uint32_t)data[1] << 8;  /* fall through */
        case 1: h ^= data[0]; h *= m;
    }
    h ^= h >> 13;
    h *= m;
    h ^= h >> 15;
    return h;
}

/* The partition of every row that has a key, as all Kafka clients choose it. A row without one goes to choices[0], or on to the
 * next choice whenever `choice_bytes` of such rows went to the last. */
RK_EXPORT int rk_partition_keys(const rk_rows *rows, int32_t partition_count, const int32_t *choices, int64_t choice_count,
                                int64_t choice_bytes, int32_t *partitions) {
    int64_t choice = 0, used = 0;
    for (int64_t row = 0; row < rows->count; row++) {
        const uint8_t *content;
        int64_t size;
        int has_key = row_of(&rows->key, row, &content, &size);
        if (has_key < 0) return RK_BAD_COLUMN;
        if (has_key) {
            partitions[row] = (int32_t)((murmur2(content, size) & 0x7fffffffu) % (uint32_t)partition_count);
            continue;
        }
        if (row_of(&rows->value, row, &content, &size) < 0 || choice_count <= 0) return RK_BAD_COLUMN;
        if (used >= choice_bytes && choice < choice_count - 1) {
            choice++;
            used = 0;
        }
        used += RECORD_OVERHEAD_MAX + size;
        partitions[row] = choices[choice];
    }
    return RK_OK;
}

/* Row numbers sorted by partition, ascending within each: partition p has order[starts[p]] up to order[starts[p + 1]].
 * `starts` has partition_count + 1 places. */
RK_EXPORT int rk_group_rows(const int32_t *partitions, int64_t count, int32_t partition_count, int64_t *starts, int64_t *order) {
    memset(starts, 0, sizeof *starts * ((size_t)partition_count + 1));
    for (int64_t row = 0; row < count; row++) {
        if (partitions[row] < 0 || partitions[row] >= partition_count) return RK_BAD_COLUMN;
        starts[partitions[row] + 1]++;
    }
    for (int32_t p = 0; p < partition_count; p++) starts[p + 1] += starts[p];
    for (int64_t row = 0; row < count; row++) order[starts[partitions[row]]++] = row;
    for (int32_t p = partition_count; p > 0; p--) starts[p] = starts[p - 1];
    starts[0] = 0;
    return RK_OK;
}

typedef struct {
    const uint8_t *key, *value; /* NULL: null */
    int64_t key_size, value_size, timestamp_delta, offset_delta, header_start, header_end;
    int64_t body_size;
} row_record;

static int row_record_of(const rk_rows *rows, int64_t row, int64_t base_timestamp, int64_t offset_delta, row_record *r) {
    if (UNLIKELY(row < 0 || row >= rows->count)) return RK_BAD_COLUMN;
    if (row_of(&rows->key, row, &r->key, &r->key_size) < 0) return RK_BAD_COLUMN;
    if (row_of(&rows->value, row, &r->value, &r->value_size) < 0) return RK_BAD_COLUMN;
    if (headers_of(rows, row, &r->header_start, &r->header_end)) return RK_BAD_COLUMN;
    r->timestamp_delta = (int64_t)((uint64_t)timestamp_of(rows, row) - (uint64_t)base_timestamp);
    r->offset_delta = offset_delta;
    int64_t size = 1 + varint_size(r->timestamp_delta) + varint_size(offset_delta);
    size += (r->key ? varint_size(r->key_size) : 1) + r->key_size;
    size += (r->value ? varint_size(r->value_size) : 1) + r->value_size;
    size += varint_size(r->header_end - r->header_start);
    for (int64_t h = r->header_start; h < r->header_end; h++) {
        const uint8_t *content;
        int64_t part;
        if (row_of(&rows->header_key, h, &content, &part) <= 0) return RK_NO_HEADER_KEY;
        size += varint_size(part) + part;
        int has = row_of(&rows->header_value, h, &content, &part);
        if (has < 0) return RK_BAD_COLUMN;
        size += (has ? varint_size(part) : 1) + part;
    }
    r->body_size = size;
    return RK_OK;
}

/* How many of the rows order[first] up to order[end] make one batch with at most `records_bytes_max` bytes of records; at least one.
 * `order` NULL: the rows themselves. */
RK_EXPORT int rk_next_batch(const rk_rows *rows, const int64_t *order, int64_t first, int64_t end, int64_t records_bytes_max,
                            rk_batch_plan *plan) {
    memset(plan, 0, sizeof *plan);
    for (int64_t at = first; at < end; at++) {
        int64_t row = order == NULL ? at : order[at];
        if (UNLIKELY(row < 0 || row >= rows->count)) return RK_BAD_COLUMN;
        int64_t timestamp = timestamp_of(rows, row);
        if (at == first) plan->base_timestamp = plan->max_timestamp = timestamp;
        row_record r;
        int code = row_record_of(rows, row, plan->base_timestamp, at - first, &r);
        if (UNLIKELY(code)) return code;
        int64_t size = varint_size(r.body_size) + r.body_size;
        if (plan->count && plan->records_size + size > records_bytes_max) return RK_OK;
        plan->records_size += size;
        plan->count++;
        if (timestamp > plan->max_timestamp) plan->max_timestamp = timestamp;
    }
    return RK_OK;
}

static inline uint8_t *write_content(uint8_t *p, const uint8_t *content, int64_t size) {
    p = write_varint(p, content == NULL ? -1 : size);
    if (size) memcpy(p, content, (size_t)size);
    return p + size;
}

/* Writes the records that rk_next_batch has planned, exactly `room` bytes. */
RK_EXPORT int rk_encode_records(const rk_rows *rows, const int64_t *order, int64_t first, const rk_batch_plan *plan, uint8_t *out,
                                int64_t room) {
    uint8_t *p = out, *end = out + room;
    for (int64_t i = 0; i < plan->count; i++) {
        row_record r;
        int code = row_record_of(rows, order == NULL ? first + i : order[first + i], plan->base_timestamp, i, &r);
        if (UNLIKELY(code)) return code;
        if (UNLIKELY(varint_size(r.body_size) + r.body_size > end - p)) return RK_NO_ROOM;
        p = write_varint(p, r.body_size);
        *p++ = 0;
        p = write_varint(p, r.timestamp_delta);
        p = write_varint(p, r.offset_delta);
        p = write_content(p, r.key, r.key_size);
        p = write_content(p, r.value, r.value_size);
        p = write_varint(p, r.header_end - r.header_start);
        for (int64_t h = r.header_start; h < r.header_end; h++) {
            const rk_binary *parts[2] = {&rows->header_key, &rows->header_value};
            for (int n = 0; n < 2; n++) {
                const uint8_t *content;
                int64_t size;
                if (row_of(parts[n], h, &content, &size) < 0) return RK_BAD_COLUMN;
                if (UNLIKELY(varint_size(size) + size > end - p)) return RK_NO_ROOM;
                p = write_content(p, content, size);
            }
        }
    }
    return p == end ? RK_OK : RK_NO_ROOM;
}

static uint32_t crc32c_bytes(const uint8_t *p, int64_t size) {
    uint32_t crc = 0xFFFFFFFFu;
    for (; size > 0; size--) {
        crc ^= *p++;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0x82F63B78u & (0u - (crc & 1u)));
    }
    return ~crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(const uint8_t *p, int64_t size) {
    uint64_t crc = 0xFFFFFFFFu;
    for (; size >= 8; size -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        crc = __builtin_ia32_crc32di(crc, word);
    }
    for (; size > 0; size--) crc = __builtin_ia32_crc32qi((uint32_t)crc, *p++);
    return ~(uint32_t)crc;
}
#endif

static uint32_t crc32c(const uint8_t *p, int64_t size) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) return crc32c_sse42(p, size);
#endif
    return crc32c_bytes(p, size);
}

/* The magic bytes and checksums of the batches from `start` on: found[0] is where the whole ones end, `size` at most, found[1] where
 * the last of them begins. RK_BAD_BATCH if the one at found[0] is damaged or cut off. Many small batches are checked faster here than
 * one by one. */
RK_EXPORT int rk_check_batches(const uint8_t *data, int64_t start, int64_t size, int64_t *found) {
    int64_t at = start;
    found[0] = found[1] = start;
    while (at < size) {
        if (size - at < HEADER_SIZE) return RK_BAD_BATCH;
        int64_t length = (int64_t)(int32_t)load32(data + at + 8) + LOG_OVERHEAD;
        if (length < HEADER_SIZE || length > size - at || data[at + 16] != 2) return RK_BAD_BATCH;
        if (load32(data + at + 17) != crc32c(data + at + 21, length - 21)) return RK_BAD_BATCH;
        found[1] = at;
        at += length;
        found[0] = at;
    }
    return RK_OK;
}

/* Whether the bytes are one batch, of `size_max` bytes at most, that can be stored as a producer sent it: with no attributes (neither
 * compressed nor of a transaction, nor a control batch, its timestamps the producer's), with a right checksum, a header that fits its
 * records, and timestamps up to `newest` at most. RK_UNUSUAL says nothing against a batch. */
RK_EXPORT int rk_is_sound_batch(const uint8_t *data, int64_t size, int64_t size_max, int64_t newest) {
    if (size < HEADER_SIZE || size > size_max || data[16] != 2) return RK_UNUSUAL;
    if ((int64_t)(int32_t)load32(data + 8) + LOG_OVERHEAD != size || load16(data + 21)) return RK_UNUSUAL;
    int64_t last_offset_delta = (int32_t)load32(data + 23), count = (int32_t)load32(data + 57);
    if (count <= 0 || last_offset_delta != count - 1) return RK_UNUSUAL;
    int64_t base_timestamp = (int64_t)load64(data + 27), max_timestamp = (int64_t)load64(data + 35);
    if (max_timestamp > newest) return RK_UNUSUAL;
    if ((int64_t)load64(data + 43) >= 0 && ((int16_t)load16(data + 51) < 0 || (int32_t)load32(data + 53) < 0)) return RK_UNUSUAL;
    if (load32(data + 17) != crc32c(data + 21, size - 21)) return RK_UNUSUAL;
    return rk_check_records(data, HEADER_SIZE, size, count, base_timestamp, 0, INT64_MIN, max_timestamp, NULL) ? RK_UNUSUAL : RK_OK;
}
