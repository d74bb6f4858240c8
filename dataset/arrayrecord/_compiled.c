/* HighwayHash-64 with the key of Riegeli, and the records of chunks.

   Optional: chunk_hash.py and chunks.py give the same without it, more slowly. The hash
   follows "Fast strong hash functions: SipHash/HighwayHash" (Alakuijala, Cox,
   Wassenberg, arXiv 1612.06257). */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "only for little-endian machines"
#endif
#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_AVX2
#include <immintrin.h>
#endif

enum {
  PACKET = 32,
  LARGE = 64 << 10 /* It takes 6 us and more: other threads of Python run meanwhile. */
};

/* A state begins with these, and with these xor the key. */
static const uint64_t MUL0[4] = {0xdbe6d5d5fe4cce2f, 0xa4093822299f31d0,
                                 0x13198a2e03707344, 0x243f6a8885a308d3};
static const uint64_t MUL1[4] = {0x3bd39e10cb0ef593, 0xc0acf169b5f18a8c,
                                 0xbe5466cf34e90c6c, 0x452821e638d01377};
static const char KEY[PACKET + 1] = "Riegeli/records\nRiegeli/records\n";

static uint64_t halves_exchanged(uint64_t x) { return x >> 32 | x << 32; }

/* Lays out the last bytes, 1 to 31 of them, as a packet. */
static void last_packet(const uint8_t *tail, size_t size, uint8_t packet[PACKET]) {
  const size_t whole = size & ~(size_t)3, rest = size & 3;
  memset(packet, 0, PACKET);
  memcpy(packet, tail, whole);
  if (size & 16) {
    memcpy(packet + 28, tail + size - 4, 4);
  } else if (rest) {
    packet[16] = tail[whole];
    packet[17] = tail[whole + (rest >> 1)];
    packet[18] = tail[size - 1];
  }
}

/* Any processor. */

typedef struct {
  uint64_t v0[4], v1[4], mul0[4], mul1[4];
} State;

static uint64_t byte_at(uint64_t x, int from, int to) {
  return (x >> (8 * from) & 0xff) << (8 * to);
}

static void add_zippered(const uint64_t from[4], uint64_t to[4]) {
  for (int i = 0; i < 4; i += 2) {
    const uint64_t a = from[i], b = from[i + 1];
    to[i] += byte_at(a, 3, 0) | byte_at(b, 4, 1) | byte_at(a, 2, 2) | byte_at(a, 5, 3) |
             byte_at(b, 6, 4) | byte_at(a, 1, 5) | byte_at(b, 7, 6) | byte_at(a, 0, 7);
    to[i + 1] += byte_at(b, 3, 0) | byte_at(a, 4, 1) | byte_at(b, 2, 2) |
                 byte_at(b, 5, 3) | byte_at(b, 1, 4) | byte_at(a, 6, 5) |
                 byte_at(b, 0, 6) | byte_at(a, 7, 7);
  }
}

static void update(State *s, const uint64_t packet[4]) {
  for (int i = 0; i < 4; ++i) {
    s->v1[i] += s->mul0[i] + packet[i];
    s->mul0[i] ^= (s->v1[i] & 0xffffffff) * (s->v0[i] >> 32);
    s->v0[i] += s->mul1[i];
    s->mul1[i] ^= (s->v0[i] & 0xffffffff) * (s->v1[i] >> 32);
  }
  add_zippered(s->v1, s->v0);
  add_zippered(s->v0, s->v1);
}

static uint64_t hash_anywhere(const uint8_t *data, size_t size) {
  uint64_t packet[4];
  State s;
  memcpy(packet, KEY, PACKET);
  for (int i = 0; i < 4; ++i) {
    s.mul0[i] = MUL0[i];
    s.mul1[i] = MUL1[i];
    s.v0[i] = MUL0[i] ^ packet[i];
    s.v1[i] = MUL1[i] ^ halves_exchanged(packet[i]);
  }
  for (; size >= PACKET; data += PACKET, size -= PACKET) {
    memcpy(packet, data, PACKET);
    update(&s, packet);
  }
  if (size) {
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = (uint32_t)s.v1[i], high = (uint32_t)(s.v1[i] >> 32);
      s.v0[i] += (uint64_t)size << 32 | size;
      s.v1[i] = (uint64_t)(high << size | high >> (32 - size)) << 32 |
                (low << size | low >> (32 - size));
    }
    last_packet(data, size, (uint8_t *)packet);
    update(&s, packet);
  }
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 4; ++i) packet[i] = halves_exchanged(s.v0[i ^ 2]);
    update(&s, packet);
  }
  return s.v0[0] + s.v1[0] + s.mul0[0] + s.mul1[0];
}

#ifdef HAS_AVX2
typedef __m256i V;

#define AVX2 __attribute__((target("avx2")))

AVX2 static inline V loaded(const void *from) {
  return _mm256_loadu_si256((const V *)from);
}

AVX2 static inline V zippered(V v) {
  const V order = _mm256_broadcastsi128_si256(_mm_setr_epi8(
      3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7));
  return _mm256_shuffle_epi8(v, order);
}

#define UPDATE(packet)                                                               \
  do {                                                                               \
    v1 = _mm256_add_epi64(v1, _mm256_add_epi64(mul0, packet));                       \
    mul0 = _mm256_xor_si256(mul0, _mm256_mul_epu32(v1, _mm256_srli_epi64(v0, 32)));  \
    v0 = _mm256_add_epi64(v0, mul1);                                                 \
    mul1 = _mm256_xor_si256(mul1, _mm256_mul_epu32(v0, _mm256_srli_epi64(v1, 32)));  \
    v0 = _mm256_add_epi64(v0, zippered(v1));                                         \
    v1 = _mm256_add_epi64(v1, zippered(v0));                                         \
  } while (0)

AVX2 static uint64_t hash_avx2(const uint8_t *data, size_t size) {
  const V key = loaded(KEY);
  V mul0 = loaded(MUL0), mul1 = loaded(MUL1);
  V v0 = _mm256_xor_si256(mul0, key);
  V v1 = _mm256_xor_si256(mul1, _mm256_shuffle_epi32(key, 0xb1));
  for (; size >= PACKET; data += PACKET, size -= PACKET) UPDATE(loaded(data));
  if (size) {
    uint8_t packet[PACKET];
    v0 = _mm256_add_epi64(v0, _mm256_set1_epi32((int)size));
    v1 = _mm256_or_si256(_mm256_slli_epi32(v1, (int)size),
                         _mm256_srli_epi32(v1, 32 - (int)size));
    last_packet(data, size, packet);
    UPDATE(loaded(packet));
  }
  for (int round = 0; round < 4; ++round) {
    UPDATE(_mm256_shuffle_epi32(_mm256_permute4x64_epi64(v0, 0x4e), 0xb1));
  }
  const V sums = _mm256_add_epi64(_mm256_add_epi64(v0, v1), _mm256_add_epi64(mul0, mul1));
  return (uint64_t)_mm_cvtsi128_si64(_mm256_castsi256_si128(sums));
}
#endif

static uint64_t (*hash)(const uint8_t *, size_t) = hash_anywhere;

/* hash_spans(data, begin, end, hashes): writes the hash of each data[begin:end]. */
static PyObject *hash_spans(PyObject *module, PyObject *args) {
  Py_buffer data, begin, end, out;
  Py_ssize_t bad = -1;
  (void)module;
  if (!PyArg_ParseTuple(args, "y*y*y*w*", &data, &begin, &end, &out)) return NULL;
  const Py_ssize_t count = out.len / 8;
  const int same = begin.len == out.len && end.len == out.len && out.len % 8 == 0;
  if (same) {
    const int64_t *begins = begin.buf, *ends = end.buf;
    uint64_t *hashes = out.buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count && bad < 0; ++i) {
      if (begins[i] < 0 || begins[i] > ends[i] || ends[i] > data.len) {
        bad = i;
      } else {
        hashes[i] = hash((const uint8_t *)data.buf + begins[i],
                         (size_t)(ends[i] - begins[i]));
      }
    }
    Py_END_ALLOW_THREADS
  }
  PyBuffer_Release(&data);
  PyBuffer_Release(&begin);
  PyBuffer_Release(&end);
  PyBuffer_Release(&out);
  if (!same) return PyErr_Format(PyExc_ValueError, "columns of different lengths");
  if (bad >= 0) return PyErr_Format(PyExc_IndexError, "span %zd is outside", bad);
  Py_RETURN_NONE;
}

/* hash_bytes(data): returns the hash of a buffer. */
static PyObject *hash_bytes(PyObject *module, PyObject *args) {
  Py_buffer data;
  uint64_t value;
  (void)module;
  if (!PyArg_ParseTuple(args, "y*", &data)) return NULL;
  if (data.len < LARGE) {
    value = hash(data.buf, (size_t)data.len);
  } else {
    Py_BEGIN_ALLOW_THREADS
    value = hash(data.buf, (size_t)data.len);
    Py_END_ALLOW_THREADS
  }
  PyBuffer_Release(&data);
  return PyLong_FromUnsignedLongLong(value);
}

/* use_avx2(wanted): returns whether AVX2 is used from now on. */
static PyObject *use_avx2(PyObject *module, PyObject *wanted) {
  const int use = PyObject_IsTrue(wanted);
  (void)module;
  if (use < 0) return NULL;
  hash = hash_anywhere;
#ifdef HAS_AVX2
  if (use && __builtin_cpu_supports("avx2")) hash = hash_avx2;
#endif
  return PyBool_FromLong(hash != hash_anywhere);
}

/* Chunks. What is unusual, damage included, is left to Python, which explains it. */

enum {
  HEADER = 40,            /* Of a chunk. */
  BLOCK = 1 << 16,        /* A block header begins at each multiple of it. */
  BLOCK_HEADER = 24,
  PASS = 1 << 20,         /* Chunks that are read before records are made. */
  KEPT = 4 << 20,         /* Larger buffers are freed after a call. */
  LONG_REST = 128 << 10,  /* Decoded bytes after the last record that are skipped. */
  WORKERS = 16            /* Kept for the next call. */
};
#define MOST_DECODED ((uint64_t)1 << 31)

/* Rows of the tables, as their dtypes in chunks.py. */
typedef struct {
  int64_t file, begin, end, records, limit, hashed;
} Chunk;
typedef struct {
  int64_t chunk, row, number, place, crc32c;
} Wanted;

/* The functions of the libraries of zstandard and google_crc32c. NULL: not found. */
typedef struct {
  const void *bytes;
  size_t size, at;
} Input;
typedef struct {
  void *bytes;
  size_t size, at;
} Output;
static struct {
  void *(*create)(void);
  size_t (*destroy)(void *);
  size_t (*decompress)(void *, void *, size_t, const void *, size_t);
  unsigned (*is_error)(size_t);
  unsigned long long (*content_bytes)(const void *, size_t);
  size_t (*frame_bytes)(const void *, size_t);
  size_t (*reset)(void *, int);
  size_t (*stream)(void *, Output *, Input *);
  uint32_t (*crc32c)(uint32_t, const uint8_t *, size_t);
} lib;

typedef struct {
  uint8_t *bytes;
  size_t size;
} Buffer;

/* What a call needs. Idle ones are taken and put back with the interpreter's lock. */
typedef struct {
  void *zstd;
  Buffer stored, sizes, values;
} Worker;
static Worker idle[WORKERS];
static int idle_count = 0;

static Worker taken_worker(void) {
  Worker none = {0};
  if (idle_count) return idle[--idle_count];
  none.zstd = lib.create ? lib.create() : NULL;
  return none;
}

static void put_back(Worker worker) {
  Buffer *buffers[] = {&worker.stored, &worker.sizes, &worker.values};
  for (int i = 0; i < 3; ++i) {
    if (buffers[i]->size > KEPT || idle_count == WORKERS) {
      free(buffers[i]->bytes);
      *buffers[i] = (Buffer){0};
    }
  }
  if (idle_count < WORKERS) {
    idle[idle_count++] = worker;
  } else if (worker.zstd) {
    lib.destroy(worker.zstd);
  }
}

static int reserve(Buffer *buffer, size_t size) {
  if (size <= buffer->size) return 1;
  free(buffer->bytes);
  buffer->bytes = malloc(size);
  buffer->size = buffer->bytes ? size : 0;
  return buffer->bytes != NULL;
}

/* A compressed part of a chunk, a chunk, and a wanted record in one. */
typedef struct {
  const uint8_t *bytes;
  size_t size, decoded;
} Part;
typedef struct {
  Part sizes, values;
  int good, packed;
  const char *piece;
  Py_ssize_t piece_size;
} Parsed;
typedef struct {
  int64_t begin, size; /* Among the values of the chunk. */
  PyObject *object;
  uint8_t *bytes;
} Record;

static int varint(const uint8_t **at, const uint8_t *end, uint64_t *value) {
  *value = 0;
  for (int shift = 0; shift < 63 && *at < end; shift += 7) {
    const uint8_t byte = *(*at)++;
    *value |= (uint64_t)(byte & 0x7f) << shift;
    if (byte < 0x80) return 1;
  }
  return 0;
}

/* Takes the size that a part decodes to, which its frame must confirm. */
static int parse_part(const uint8_t *at, const uint8_t *end, int packed, Part *part) {
  uint64_t decoded = (uint64_t)(end - at);
  if (packed && !varint(&at, end, &decoded)) return 0;
  const size_t size = (size_t)(end - at);
  *part = (Part){at, size, decoded};
  if (decoded > MOST_DECODED) return 0;
  if (!packed || !decoded) return 1;
  const unsigned long long claim = lib.content_bytes(at, size);
  if (claim != (unsigned long long)-1) return claim == decoded;
  /* Of unknown size. It may refer to what its window holds, and no further. */
  const int log = 10 + (at[5] >> 3);
  return log < 32 && decoded <= (uint64_t)1 << log;
}

static int parse(const uint8_t *data, size_t size, const Chunk *chunk, Parsed *out) {
  uint64_t word[HEADER / 8], sizes_bytes;
  if (size < HEADER + 2 || chunk->records < 1) return 0;
  memcpy(word, data, HEADER);
  if (word[3] != ((uint64_t)chunk->records << 8 | 'r')) return 0;
  if (word[1] > size - HEADER || word[1] < 2) return 0;
  if (word[4] > MOST_DECODED || (int64_t)word[4] > chunk->limit) return 0;
  if (chunk->hashed && (hash(data + 8, HEADER - 8) != word[0] ||
                        hash(data + HEADER, word[1]) != word[2])) {
    return 0;
  }
  const uint8_t *at = data + HEADER, *end = at + word[1];
  const uint8_t compression = *at++;
  out->packed = compression == 'z';
  if (compression && !(out->packed && lib.decompress)) return 0;
  if (!varint(&at, end, &sizes_bytes) || sizes_bytes > (uint64_t)(end - at)) return 0;
  if (!parse_part(at, at + sizes_bytes, out->packed, &out->sizes)) return 0;
  if (!parse_part(at + sizes_bytes, end, out->packed, &out->values)) return 0;
  /* A number takes at most 9 bytes. */
  return out->values.decoded == word[4] &&
         out->sizes.decoded >= (uint64_t)chunk->records &&
         out->sizes.decoded <= 9 * (uint64_t)chunk->records;
}

/* Decodes the first bytes of a part, usually all. */
static int decode(Worker *worker, const Part *part, int packed, uint8_t *out,
                  size_t size) {
  if (!size) return 1;
  if (!packed) {
    memcpy(out, part->bytes, size);
    return 1;
  }
  if (!worker->zstd || lib.frame_bytes(part->bytes, part->size) != part->size) return 0;
  if (size == part->decoded) {
    return lib.decompress(worker->zstd, out, size, part->bytes, part->size) == size;
  }
  Input input = {part->bytes, part->size, 0};
  Output output = {out, size, 0};
  lib.reset(worker->zstd, 1);
  while (output.at < size) {
    const size_t input_at = input.at, output_at = output.at;
    if (lib.is_error(lib.stream(worker->zstd, &output, &input))) return 0;
    if (input.at == input_at && output.at == output_at) return 0;
  }
  return 1;
}

/* Decodes the sizes of records. That of an only one is known. */
static int decode_lengths(Worker *worker, const Chunk *chunk, const Parsed *parsed,
                          int64_t *lengths) {
  uint64_t length, sum = 0;
  if (chunk->records == 1) {
    lengths[0] = (int64_t)parsed->values.decoded;
    return 1;
  }
  if (!reserve(&worker->sizes, parsed->sizes.decoded)) return 0;
  if (!decode(worker, &parsed->sizes, parsed->packed, worker->sizes.bytes,
              parsed->sizes.decoded)) {
    return 0;
  }
  const uint8_t *at = worker->sizes.bytes, *end = at + parsed->sizes.decoded;
  for (int64_t i = 0; i < chunk->records; ++i) {
    if (!varint(&at, end, &length) || length > parsed->values.decoded) return 0;
    lengths[i] = (int64_t)length;
    sum += length;
  }
  return at == end && sum == parsed->values.decoded;
}

/* Takes the block headers out of physical bytes; returns the size, -1 for damage. */
static int64_t without_headers(uint8_t *data, const Chunk *chunk) {
  int64_t block = (chunk->begin + BLOCK - 1) / BLOCK * BLOCK;
  int64_t done = (block < chunk->end ? block : chunk->end) - chunk->begin;
  for (; block < chunk->end; block += BLOCK) {
    const uint8_t *header = data + (block - chunk->begin);
    const int64_t rest = chunk->end - block - BLOCK_HEADER;
    const int64_t size = rest < BLOCK - BLOCK_HEADER ? rest : BLOCK - BLOCK_HEADER;
    uint64_t expected;
    if (rest < 0) return -1;
    memcpy(&expected, header, 8);
    if (chunk->hashed && hash(header + 8, BLOCK_HEADER - 8) != expected) return -1;
    memmove(data + done, header + BLOCK_HEADER, (size_t)size);
    done += size;
  }
  return done;
}

static int read_whole(int file, uint8_t *out, int64_t begin, int64_t end) {
  while (begin < end) {
    const ssize_t got = pread(file, out, (size_t)(end - begin), (off_t)begin);
    if (got <= 0) return 0;
    out += got;
    begin += got;
  }
  return 1;
}

/* What `pick` works on. */
typedef struct {
  const Chunk *chunks;
  const Wanted *wanted;
  Py_ssize_t chunk_count, wanted_count;
  const int64_t *files;
  Py_ssize_t file_count;
  Py_buffer whole; /* Logical bytes that hold all chunks; obj is NULL without. */
  int in_pieces;
  Parsed *parsed;
  Record *records;
  Worker worker;
} Job;

/* Finds the logical bytes of a chunk. Physical ones are copied to `stored`. */
static const uint8_t *located(const Job *job, Py_ssize_t i, uint8_t *stored,
                              size_t *size) {
  const Chunk *chunk = job->chunks + i;
  const int64_t length = chunk->end - chunk->begin;
  *size = (size_t)length;
  if (job->whole.obj) {
    if (chunk->end > job->whole.len) return NULL;
    return (const uint8_t *)job->whole.buf + chunk->begin;
  }
  if (job->in_pieces) {
    if (job->parsed[i].piece_size != length) return NULL;
    memcpy(stored, job->parsed[i].piece, (size_t)length);
  } else {
    const int file = (int)job->files[chunk->file];
    if (!read_whole(file, stored, chunk->begin, chunk->end)) return NULL;
  }
  const int64_t logical = without_headers(stored, chunk);
  *size = (size_t)logical;
  return logical < 0 ? NULL : stored;
}

/* Parses a chunk, and finds the wanted records [first, last) in it. */
static int place_records(Job *job, Py_ssize_t i, uint8_t *stored, Py_ssize_t first,
                         Py_ssize_t last) {
  const Chunk *chunk = job->chunks + i;
  Parsed *parsed = job->parsed + i;
  size_t size;
  int64_t one, *lengths = &one;
  const uint8_t *data = located(job, i, stored, &size);
  if (!data || !parse(data, size, chunk, parsed)) return 0;
  if (chunk->records > 1) {
    lengths = malloc(sizeof *lengths * (size_t)chunk->records);
    if (!lengths) return 0;
  }
  const int good = decode_lengths(&job->worker, chunk, parsed, lengths);
  int64_t row = 0, begin = 0;
  for (Py_ssize_t item = first; good && item < last; ++item) {
    const int64_t wanted = job->wanted[item].row;
    if (wanted < row) row = begin = 0;
    while (row < wanted) begin += lengths[row++];
    job->records[item].begin = begin;
    job->records[item].size = lengths[wanted];
  }
  if (lengths != &one) free(lengths);
  return good;
}

/* Decodes the wanted records [first, last) of a chunk into their objects. */
static int fill_records(Job *job, Py_ssize_t i, Py_ssize_t first, Py_ssize_t last) {
  const Parsed *parsed = job->parsed + i;
  const Part *values = &parsed->values;
  const Record *one = job->records + first;
  const uint8_t *bytes = values->bytes;
  size_t past = 0;
  for (Py_ssize_t item = first; item < last; ++item) {
    const size_t end = (size_t)(job->records[item].begin + job->records[item].size);
    if (end > past) past = end;
  }
  if (values->decoded - past <= LONG_REST) past = values->decoded;
  if (parsed->packed && last == first + 1 && job->chunks[i].records == 1) {
    bytes = one->bytes;
    if (!decode(&job->worker, values, 1, one->bytes, past)) return 0;
  } else if (parsed->packed) {
    if (!reserve(&job->worker.values, past)) return 0;
    bytes = job->worker.values.bytes;
    if (!decode(&job->worker, values, 1, job->worker.values.bytes, past)) return 0;
  }
  for (Py_ssize_t item = first; item < last; ++item, ++one) {
    const int64_t expected = job->wanted[item].crc32c;
    const size_t size = (size_t)one->size;
    if (size && bytes != one->bytes) memcpy(one->bytes, bytes + one->begin, size);
    if (expected >= 0 && lib.crc32c(0, one->bytes, size) != expected) return 0;
  }
  return 1;
}

/* Checks all that the tables say before anything is read. */
static int tables_agree(const Job *job) {
  for (Py_ssize_t i = 0; i < job->chunk_count; ++i) {
    const Chunk *chunk = job->chunks + i;
    if (chunk->begin < 0 || chunk->begin >= chunk->end) return 0;
    if (job->files && (chunk->file < 0 || chunk->file >= job->file_count)) return 0;
  }
  for (Py_ssize_t item = 0; item < job->wanted_count; ++item) {
    const Wanted *wanted = job->wanted + item;
    if (wanted->chunk < (item ? wanted[-1].chunk : 0)) return 0;
    if (wanted->chunk >= job->chunk_count || wanted->row < 0) return 0;
    if (wanted->row >= job->chunks[wanted->chunk].records) return 0;
  }
  return 1;
}

/* Reads the chunks of a pass, and makes their records. */
static int pick_some(Job *job, PyObject *out, PyObject *left, Py_ssize_t first,
                     Py_ssize_t last, size_t bytes, Py_ssize_t *item) {
  const Py_ssize_t begin = *item;
  Py_ssize_t end = begin, at;
  Py_BEGIN_ALLOW_THREADS
  const int room = job->whole.obj || reserve(&job->worker.stored, bytes);
  bytes = 0;
  for (Py_ssize_t i = first; i < last; ++i) {
    uint8_t *stored = job->whole.obj ? NULL : job->worker.stored.bytes + bytes;
    for (at = end; end < job->wanted_count && job->wanted[end].chunk == i;) ++end;
    job->parsed[i].good = room && place_records(job, i, stored, at, end);
    bytes += (size_t)(job->chunks[i].end - job->chunks[i].begin);
  }
  Py_END_ALLOW_THREADS
  *item = end;
  for (at = begin; at < end; ++at) {
    Record *record = job->records + at;
    record->object = NULL;
    if (!job->parsed[job->wanted[at].chunk].good) continue;
    record->object = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)record->size);
    if (!record->object) break;
    record->bytes = (uint8_t *)PyBytes_AsString(record->object);
  }
  if (at < end) {
    while (at-- > begin) Py_XDECREF(job->records[at].object);
    return 0;
  }
  Py_BEGIN_ALLOW_THREADS
  for (at = begin; at < end;) {
    const Py_ssize_t chunk = (Py_ssize_t)job->wanted[at].chunk, from = at;
    while (at < end && job->wanted[at].chunk == chunk) ++at;
    Parsed *parsed = job->parsed + chunk;
    parsed->good = parsed->good && fill_records(job, chunk, from, at);
  }
  Py_END_ALLOW_THREADS
  int done = 1;
  for (at = begin; at < end; ++at) {
    PyObject *object = job->records[at].object;
    if (!job->parsed[job->wanted[at].chunk].good) {
      Py_XDECREF(object);
    } else if (PyList_SetItem(out, (Py_ssize_t)job->wanted[at].place, object)) {
      done = 0;
    }
  }
  for (Py_ssize_t i = first; done && i < last; ++i) {
    if (job->parsed[i].good) continue;
    PyObject *number = PyLong_FromSsize_t(i);
    done = number && !PyList_Append(left, number);
    Py_XDECREF(number);
  }
  return done;
}

static int pick_all(Job *job, PyObject *out, PyObject *left) {
  Py_ssize_t item = 0;
  for (Py_ssize_t first = 0, last; first < job->chunk_count; first = last) {
    size_t bytes = 0, size;
    for (last = first; last < job->chunk_count; ++last, bytes += size) {
      size = (size_t)(job->chunks[last].end - job->chunks[last].begin);
      if (bytes && bytes + size > PASS) break;
    }
    if (!pick_some(job, out, left, first, last, bytes, &item)) return 0;
  }
  return 1;
}

/* Takes the bytes of chunks from a list, as many as there are chunks. */
static int take_pieces(Job *job, PyObject *data) {
  if (PyList_Size(data) != job->chunk_count) {
    PyErr_SetString(PyExc_ValueError, "not a piece for each chunk");
    return 0;
  }
  for (Py_ssize_t i = 0; i < job->chunk_count; ++i) {
    char *bytes;
    Parsed *chunk = job->parsed + i;
    PyObject *piece = PyList_GetItem(data, i);
    if (PyBytes_AsStringAndSize(piece, &bytes, &chunk->piece_size)) return 0;
    chunk->piece = bytes;
  }
  return 1;
}

/* pick(files, data, chunks, wanted, out): returns the numbers of chunks that are left.

   The wanted records of others are put into the list `out`. `files` are descriptors,
   int64. `data` is None to read from these, a list of the physical bytes of each chunk,
   or a buffer of logical bytes. */
static PyObject *pick(PyObject *module, PyObject *args) {
  Py_buffer files, chunks, wanted;
  PyObject *data, *out, *left = NULL;
  Job job = {0};
  (void)module;
  if (!PyArg_ParseTuple(args, "y*Oy*y*O!", &files, &data, &chunks, &wanted, &PyList_Type,
                        &out)) {
    return NULL;
  }
  job.chunks = chunks.buf;
  job.wanted = wanted.buf;
  job.chunk_count = chunks.len / (Py_ssize_t)sizeof(Chunk);
  job.wanted_count = wanted.len / (Py_ssize_t)sizeof(Wanted);
  job.parsed = malloc(((size_t)job.chunk_count + 1) * sizeof *job.parsed);
  job.records = malloc(((size_t)job.wanted_count + 1) * sizeof *job.records);
  int ready = job.parsed && job.records;
  if (!ready) {
    PyErr_NoMemory();
  } else if (data == Py_None) {
    job.files = files.buf;
    job.file_count = files.len / 8;
  } else if (PyList_Check(data)) {
    job.in_pieces = 1;
    ready = take_pieces(&job, data);
  } else {
    ready = !PyObject_GetBuffer(data, &job.whole, PyBUF_SIMPLE);
  }
  if (ready && !tables_agree(&job)) {
    ready = 0;
    PyErr_SetString(PyExc_ValueError, "a table contradicts itself");
  }
  if (ready && (left = PyList_New(0))) {
    job.worker = taken_worker();
    if (!pick_all(&job, out, left)) {
      Py_DECREF(left);
      left = NULL;
    }
    put_back(job.worker);
  }
  if (job.whole.obj) PyBuffer_Release(&job.whole);
  PyBuffer_Release(&files);
  PyBuffer_Release(&chunks);
  PyBuffer_Release(&wanted);
  free(job.parsed);
  free(job.records);
  return left;
}

/* checksum(data, chunks, crc32cs, lengths): fills the columns, of all records.

   `data` are logical bytes. With an empty `crc32cs`, records are not decoded. Returns
   False if a chunk is unusual or damaged. */
static PyObject *checksum(PyObject *module, PyObject *args) {
  Py_buffer data, chunks, crc32cs, lengths;
  (void)module;
  if (!PyArg_ParseTuple(args, "y*y*w*w*", &data, &chunks, &crc32cs, &lengths)) {
    return NULL;
  }
  Worker worker = taken_worker();
  const Chunk *chunk = chunks.buf;
  const Chunk *end = chunk + chunks.len / (Py_ssize_t)sizeof(Chunk);
  uint32_t *crc32c = crc32cs.buf;
  int64_t *length = lengths.buf, left = lengths.len / 8;
  const int decodes = crc32cs.len > 0;
  int good = lib.crc32c && (!decodes || crc32cs.len / 4 == left);
  Py_BEGIN_ALLOW_THREADS
  for (; good && chunk < end; ++chunk) {
    Parsed parsed;
    good = chunk->begin >= 0 && chunk->begin < chunk->end && chunk->end <= data.len &&
           chunk->records <= left;
    const size_t size = (size_t)(chunk->end - chunk->begin);
    const uint8_t *at = (const uint8_t *)data.buf + chunk->begin;
    good = good && parse(at, size, chunk, &parsed) &&
           decode_lengths(&worker, chunk, &parsed, length);
    if (!good) break;
    const Part *values = &parsed.values;
    const uint8_t *record = values->bytes;
    if (parsed.packed && decodes) {
      good = reserve(&worker.values, values->decoded) &&
             decode(&worker, values, 1, worker.values.bytes, values->decoded);
      record = worker.values.bytes;
    }
    for (int64_t i = 0; good && i < chunk->records; ++i, ++length) {
      if (decodes) *crc32c++ = lib.crc32c(0, record, (size_t)*length);
      record += *length;
    }
    left -= chunk->records;
  }
  Py_END_ALLOW_THREADS
  put_back(worker);
  PyBuffer_Release(&data);
  PyBuffer_Release(&chunks);
  PyBuffer_Release(&crc32cs);
  PyBuffer_Release(&lengths);
  return PyBool_FromLong(good && !left);
}

/* use_libraries(addresses): takes the addresses of the functions of `lib`. */
static PyObject *use_libraries(PyObject *module, PyObject *args) {
  Py_buffer addresses;
  (void)module;
  if (!PyArg_ParseTuple(args, "y*", &addresses)) return NULL;
  const int same = addresses.len == sizeof lib;
  if (same) memcpy(&lib, addresses.buf, sizeof lib);
  PyBuffer_Release(&addresses);
  if (!same) return PyErr_Format(PyExc_ValueError, "not as many addresses");
  Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"hash_spans", hash_spans, METH_VARARGS, "Hash of each data[begin:end]."},
    {"hash_bytes", hash_bytes, METH_VARARGS, "Hash of a buffer."},
    {"pick", pick, METH_VARARGS, "Wanted records of chunks."},
    {"checksum", checksum, METH_VARARGS, "Checksums and lengths of all records."},
    {"use_libraries", use_libraries, METH_VARARGS, "Takes addresses of functions."},
    {"use_avx2", use_avx2, METH_O, "Returns whether AVX2 is used from now on."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef MODULE = {.m_base = PyModuleDef_HEAD_INIT,
                                    .m_name = "_compiled",
                                    .m_doc = "Hashes and records of chunks.",
                                    .m_size = -1,
                                    .m_methods = METHODS};

PyMODINIT_FUNC PyInit__compiled(void) {
  PyObject *module = PyModule_Create(&MODULE);
  PyObject *used = module ? use_avx2(module, Py_True) : NULL;
  if (used == NULL) {
    Py_XDECREF(module);
    return NULL;
  }
  Py_DECREF(used);
  return module;
}
