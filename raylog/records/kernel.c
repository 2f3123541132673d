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

#include "kernel_bytes.h"
#include "kernel_writing.h"

#ifndef RK_DIGEST
#define RK_DIGEST 0
#endif

RK_EXPORT uint32_t rk_digest(void) { return RK_DIGEST; }

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

/* ------------------------------------------------------------------ whole batches */

static uint32_t crc32c_bytes(const uint8_t *p, int64_t size) {
    uint32_t crc = 0xFFFFFFFFu;
    for (; size > 0; size--) {
        crc ^= *p++;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0x82F63B78u & (0u - (crc & 1u)));
    }
    return ~crc;
}

#if defined(__x86_64__)
#if defined(__clang__)
#define SSE42 "sse4.2,crc32" /* of two features for clang, and of one for GCC before 11 */
#else
#define SSE42 "sse4.2"
#endif
__attribute__((target(SSE42))) static uint32_t crc32c_sse42(const uint8_t *p, int64_t size) {
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
