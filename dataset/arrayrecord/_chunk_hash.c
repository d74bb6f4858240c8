/* HighwayHash-64 of many spans of a buffer, with the key of Riegeli.

   Optional: chunk_hash.py gives the same values without it, more slowly. Follows
   "Fast strong hash functions: SipHash/HighwayHash" (Alakuijala, Cox, Wassenberg,
   arXiv 1612.06257). */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

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

static PyMethodDef METHODS[] = {
    {"hash_spans", hash_spans, METH_VARARGS, "Hash of each data[begin:end]."},
    {"hash_bytes", hash_bytes, METH_VARARGS, "Hash of a buffer."},
    {"use_avx2", use_avx2, METH_O, "Returns whether AVX2 is used from now on."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef MODULE = {.m_base = PyModuleDef_HEAD_INIT,
                                    .m_name = "_chunk_hash",
                                    .m_doc = "HighwayHash-64 with Riegeli's key.",
                                    .m_size = -1,
                                    .m_methods = METHODS};

PyMODINIT_FUNC PyInit__chunk_hash(void) {
  PyObject *module = PyModule_Create(&MODULE);
  PyObject *used = module ? use_avx2(module, Py_True) : NULL;
  if (used == NULL) {
    Py_XDECREF(module);
    return NULL;
  }
  Py_DECREF(used);
  return module;
}
