/* The kernel's writing (kernel.c says what of it is called when): rows of Arrow columns become the records of batches. */

#pragma once

#include "kernel_bytes.h"

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
