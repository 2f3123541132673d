/* Feeds the kernel hostile bytes, built with sanitizers by test_kernel_fuzz.py.
 *
 *     kernel_fuzz SEED ROUNDS < corpus      corpus: u32 size (little-endian), then a log; again and again
 *
 * Each round takes a log, breaks it in a few places, puts it at the end of an allocation of exactly its size, and reads it: once
 * as it is, and once with bytes that change between measuring and filling. Every output buffer has exactly the room that was
 * measured, so one byte too many is an error of the sanitizer. Its first batch is judged as a produced one. Then a round of writing: columns whose ends, bitmaps and row
 * numbers may be nonsense. Prints how many logs were whole, how many broken, and a checksum, so that a run can be repeated. */

#include "kernel.c"

#include <stdio.h>
#include <stdlib.h>

static uint64_t state;

static uint64_t chance(void) { /* xorshift64* */
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1dull;
}

static int64_t below(int64_t bound) { return bound <= 0 ? 0 : (int64_t)(chance() % (uint64_t)bound); }

static void *exactly(int64_t size) { /* never NULL, never a byte more than asked for */
    void *made = malloc(size > 0 ? (size_t)size : 1);
    if (made == NULL) abort();
    return made;
}

static uint64_t checksum, whole, broken, changed, right, wrong, sound;

static void take(const void *bytes, int64_t size) {
    for (int64_t i = 0; i < size; i++) checksum = checksum * 31 + ((const uint8_t *)bytes)[i];
}

static void mutate(uint8_t *data, int64_t size) {
    static const uint8_t telling[] = {0x00, 0x01, 0x02, 0x7f, 0x80, 0xff, 0xfe, 0x3f};
    for (int64_t n = below(4); n > 0 && size > 0; n--) {
        int64_t at = below(size);
        switch (below(4)) {
            case 0: data[at] = (uint8_t)chance(); break;
            case 1: data[at] = telling[below(8)]; break;
            case 2: data[at] ^= (uint8_t)(1 << below(8)); break;
            default: /* a long varint, or a length field */
                for (int64_t i = at; i < size && i < at + 11; i++) data[i] = i % 11 == 10 ? 0x01 : 0xff;
        }
    }
}

static void column_for(rk_column *column, int64_t count, int64_t nulls, int64_t bytes) {
    column->ends = exactly(4 * (count + 1));
    column->valid = nulls ? exactly((count + 7) / 8) : NULL;
    column->data = exactly(bytes);
    column->room = bytes;
}

static void free_column(rk_column *column) {
    free(column->ends);
    free(column->valid);
    free(column->data);
}

static void check_column(const rk_column *column, int64_t count) {
    if (column->ends == NULL) return;
    if (column->ends[0] != 0) abort();
    for (int64_t i = 0; i < count; i++) if (column->ends[i] > column->ends[i + 1]) abort();
    if (column->ends[count] != column->room) abort();
    take(column->data, column->room);
}

static void read_log(uint8_t *data, int64_t size, int changes_between) {
    rk_run run = {data, size, below(3) ? INT64_MIN : below(40), below(3) ? INT64_MAX : below(80), 0};
    rk_sizes sizes;
    int code = rk_measure(&run, 1, &sizes);
    if (code) {
        broken++;
        if (sizes.bad_run != 0 || sizes.bad_position < 0 || sizes.bad_position > size) abort();
        run.size = sizes.bad_position;
    } else whole++;
    if (run.records != sizes.records) abort();
    rk_columns columns;
    memset(&columns, 0, sizeof columns);
    columns.record_room = sizes.records;
    columns.header_room = sizes.headers;
    int64_t wanted = below(64);
    if (wanted & 1) columns.offsets = exactly(8 * sizes.records);
    if (wanted & 2) columns.timestamps = exactly(8 * sizes.records);
    if (wanted & 4) columns.timestamp_types = exactly(4 * sizes.records);
    if (wanted & 8) column_for(&columns.key, sizes.records, sizes.null_keys, sizes.key_bytes);
    if (wanted & 16) column_for(&columns.value, sizes.records, sizes.null_values, sizes.value_bytes);
    if (wanted & 32) {
        columns.header_ends = exactly(4 * (sizes.records + 1));
        column_for(&columns.header_key, sizes.headers, 0, sizes.header_key_bytes);
        column_for(&columns.header_value, sizes.headers, sizes.null_header_values, sizes.header_value_bytes);
    }
    if (changes_between) mutate(data, size);
    code = rk_fill(&run, 1, &columns);
    if (code) {
        if (!changes_between) abort(); /* what was measured can be filled */
        changed++;
    } else if (!changes_between) {
        if (wanted & 1) take(columns.offsets, 8 * sizes.records);
        check_column(&columns.key, sizes.records);
        check_column(&columns.value, sizes.records);
        check_column(&columns.header_key, sizes.headers);
        check_column(&columns.header_value, sizes.headers);
    }
    free(columns.offsets);
    free(columns.timestamps);
    free(columns.timestamp_types);
    free(columns.header_ends);
    free_column(&columns.key);
    free_column(&columns.value);
    free_column(&columns.header_key);
    free_column(&columns.header_value);
}

/* ------------------------------------------------------------------ checking */

/* Judges the records of the first batch of a log, as its header has them and under any rules. What is judged right can be measured. */
static void check_batch(const uint8_t *data, int64_t size) {
    if (size < HEADER_SIZE) return;
    int64_t count = below(8) ? (int32_t)load32(data + 57) : (int64_t)(int32_t)chance();
    int64_t room = below(4), oldest = below(2) ? INT64_MIN : below(2000), newest = below(2) ? INT64_MAX : below(2000);
    int32_t needs_key = (int32_t)below(2);
    int64_t batch_size = LOG_OVERHEAD + (int64_t)(int32_t)load32(data + 8);
    int64_t end = batch_size >= HEADER_SIZE && batch_size <= size && below(8) ? batch_size : size;
    rk_report report = {exactly((int64_t)sizeof(rk_fault) * room), room, 0, 0};
    int64_t base_timestamp = (int64_t)load64(data + 27);
    int first = rk_check_records(data, HEADER_SIZE, end, count, base_timestamp, needs_key, oldest, newest, NULL);
    int code = rk_check_records(data, HEADER_SIZE, end, count, base_timestamp, needs_key, oldest, newest, &report);
    if ((first == RK_OK) != (code == RK_OK)) abort();
    if (report.bad_record < 0 || (count > 0 && report.bad_record > count)) abort();
    int64_t named = report.fault_count < room ? report.fault_count : room;
    for (int64_t i = 0; i < named; i++) {
        const rk_fault *fault = &report.faults[i];
        if (fault->index < 0 || fault->index >= count || (i && fault->index <= fault[-1].index)) abort();
        if (fault->code != RK_NO_KEY && fault->code != RK_BAD_TIMESTAMP) abort();
    }
    take(report.faults, (int64_t)sizeof(rk_fault) * named);
    free(report.faults);
    if (code == RK_OK || code == RK_NO_KEY || code == RK_BAD_TIMESTAMP) {
        right++;
        rk_run run = {data, end, INT64_MIN, INT64_MAX, 0};
        rk_sizes sizes;
        if (end == batch_size && count == (int32_t)load32(data + 57) && data[16] == 2 && !(load16(data + 21) & 7)) {
            if (rk_measure(&run, 1, &sizes) != RK_OK) abort();
            if (sizes.records != count && load64(data) < 1 << 20) abort();
        }
    } else wrong++;
}

/* The first batch of a log alone, its checksum mostly mended: what is called sound, rk_check_records and rk_measure find right. */
static void check_whole_batch(const uint8_t *log, int64_t log_size) {
    if (log_size < HEADER_SIZE) return;
    int64_t size = LOG_OVERHEAD + (int64_t)(int32_t)load32(log + 8);
    if (size < HEADER_SIZE || size > log_size) size = log_size;
    if (!below(16)) size = below(size);
    uint8_t *batch = exactly(size);
    memcpy(batch, log, (size_t)size);
    if (size >= HEADER_SIZE && below(16)) {
        uint32_t crc = __builtin_bswap32(crc32c(batch + 21, size - 21));
        memcpy(batch + 17, &crc, 4);
    }
    int64_t newest = below(2) ? INT64_MAX : below(2000);
    if (rk_is_sound_batch(batch, size, below(4) ? INT64_MAX : below(2 * size), newest) == RK_OK) {
        sound++;
        int64_t count = (int32_t)load32(batch + 57), base = (int64_t)load64(batch + 27);
        if (rk_check_records(batch, HEADER_SIZE, size, count, base, 0, INT64_MIN, newest, NULL) != RK_OK) abort();
        int64_t found[2];
        if (rk_check_batches(batch, 0, size, found) != RK_OK || found[0] != size || found[1] != 0) abort();
        rk_run run = {batch, size, INT64_MIN, INT64_MAX, 0};
        rk_sizes sizes;
        if (rk_measure(&run, 1, &sizes) != RK_OK) abort();
    }
    free(batch);
}

/* ------------------------------------------------------------------ writing */

static rk_binary arrow_column(int64_t count, void **held, int is_broken) {
    int64_t size = below(300), first = below(3), at = 0;
    rk_binary column = {NULL, NULL, exactly(size), size, first, count, (int32_t)below(2)};
    int64_t width = column.is_wide ? 8 : 4, places = first + count + 1;
    uint8_t *ends = exactly(width * places);
    for (int64_t i = 0; i < places; i++) {
        if (i && below(3)) at += below(size - at + 1);
        int64_t end = is_broken && !below(6) ? (int64_t)chance() : at;
        if (column.is_wide) memcpy(ends + 8 * i, &end, 8);
        else { int32_t narrow = (int32_t)end; memcpy(ends + 4 * i, &narrow, 4); }
    }
    column.ends = ends;
    memset((void *)(uintptr_t)column.data, 'x', (size_t)size);
    if (below(2)) {
        uint8_t *valid = exactly((places + 7) / 8);
        for (int64_t i = 0; i < (places + 7) / 8; i++) valid[i] = (uint8_t)(below(3) ? 0xff : chance());
        column.valid = valid;
    }
    held[0] = ends;
    held[1] = (void *)(uintptr_t)column.data;
    held[2] = (void *)(uintptr_t)column.valid;
    return column;
}

static void write_rows(void) {
    void *held[12] = {0};
    int is_broken = (int)below(2);
    int64_t count = below(20), header_count = below(30);
    rk_rows rows;
    memset(&rows, 0, sizeof rows);
    rows.count = count;
    rows.now_ms = (int64_t)chance();
    if (below(4)) rows.key = arrow_column(count, held, is_broken);
    if (below(8)) rows.value = arrow_column(count, held + 3, is_broken);
    int32_t *header_ends = NULL;
    if (below(2)) {
        header_ends = exactly(4 * (count + 1));
        int64_t at = 0;
        for (int64_t i = 0; i <= count; i++) {
            if (i && below(2)) at += below(header_count - at + 1);
            header_ends[i] = is_broken && !below(6) ? (int32_t)chance() : (int32_t)at;
        }
        rows.header_ends = header_ends;
        rows.header_key = arrow_column(header_count, held + 6, is_broken);
        rows.header_value = arrow_column(header_count, held + 9, is_broken);
    }
    int64_t *times = NULL;
    if (below(2)) {
        times = exactly(8 * count);
        for (int64_t i = 0; i < count; i++) times[i] = (int64_t)chance();
        rows.timestamps = times;
    }
    rk_row_sizes sizes;
    int checked = rk_check_rows(&rows, below(3) ? INT64_MAX : below(400), &sizes);
    int32_t partition_count = (int32_t)below(9) + 1, choices[2] = {0, partition_count - 1};
    int32_t *partitions = exactly(4 * count);
    int64_t *starts = exactly(8 * (partition_count + 1)), *order = exactly(8 * count);
    int code = rk_partition_keys(&rows, partition_count, choices, 2, below(200), partitions);
    if (code && !is_broken) abort();
    if (!code) {
        if (is_broken && count && !below(4)) partitions[below(count)] = (int32_t)chance();
        code = rk_group_rows(partitions, count, partition_count, starts, order);
        if (code && !is_broken) abort();
    }
    if (!code && count) {
        if (starts[partition_count] != count) abort();
        if (is_broken && !below(4)) order[below(count)] = (int64_t)chance();
        int64_t first = 0;
        while (first < count) {
            rk_batch_plan plan;
            const int64_t *rows_in = below(2) ? order : NULL;
            code = rk_next_batch(&rows, rows_in, first, count, below(300), &plan);
            if (code) {
                if (checked == RK_OK && !is_broken) abort();
                break;
            }
            uint8_t *out = exactly(plan.records_size);
            int shortened = !below(10);
            if (shortened) { free(out); out = exactly(plan.records_size - 1); }
            code = rk_encode_records(&rows, rows_in, first, &plan, out, plan.records_size - shortened);
            if (shortened ? code != RK_NO_ROOM : code != RK_OK) abort();
            if (!shortened) take(out, plan.records_size);
            free(out);
            first += plan.count;
        }
    }
    free(partitions);
    free(starts);
    free(order);
    free(header_ends);
    free(times);
    for (int i = 0; i < 12; i++) free(held[i]);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    state = strtoull(argv[1], NULL, 10) * 2 + 1;
    int64_t rounds = strtoll(argv[2], NULL, 10);
    static uint8_t corpus[1 << 22];
    int64_t size = (int64_t)fread(corpus, 1, sizeof corpus, stdin), logs = 0;
    static uint8_t *log_at[1 << 12];
    static uint32_t log_size[1 << 12];
    for (int64_t at = 0; at + 4 <= size && logs < 1 << 12; logs++) {
        memcpy(&log_size[logs], corpus + at, 4);
        if (log_size[logs] > size - at - 4) return 2;
        log_at[logs] = corpus + at + 4;
        at += 4 + log_size[logs];
    }
    if (!logs) return 2;
    for (int64_t round = 0; round < rounds; round++) {
        int64_t chosen = below(logs);
        int64_t length = below(8) ? log_size[chosen] : below(log_size[chosen] + 1);
        uint8_t *data = exactly(length);
        memcpy(data, log_at[chosen], (size_t)length);
        if (below(6)) mutate(data, length);
        read_log(data, length, 0);
        check_batch(data, length);
        check_whole_batch(data, length);
        if (below(2)) read_log(data, length, 1);
        free(data);
        write_rows();
    }
    printf("%llu whole, %llu broken, %llu changed, %llu right, %llu wrong, %llu sound, checksum %016llx\n", (unsigned long long)whole,
           (unsigned long long)broken, (unsigned long long)changed, (unsigned long long)right, (unsigned long long)wrong,
           (unsigned long long)sound,
           (unsigned long long)checksum);
    return 0;
}
