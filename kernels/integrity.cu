// arch: compute_70
// The kernels of the integrity ladder. Headerless: NVRTC compiles this file with no include path.
//
// A unit is 16 bytes and names itself: a reversible mix of a key (run, source, destination, mechanism, attempt, role)
// and its own index, with a constant check field inside. The host twin is src/words.rs; tests hold both to the same
// vectors. A range may start and end inside a unit: its whole units are moved 16 bytes at a time, its two rims byte by
// byte. Units are aligned in memory, so `first` is the unit that holds the first byte, whole or not. Limits: `to` and
// `from` of a copy start at the same byte of a unit.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;
typedef unsigned char u8;

#define THREADS 256
#define UNROLL 4
#define TILE (THREADS * UNROLL)

#define CHECK 0xb5c96dull
#define CHECK_MASK 0xffffffull
#define INDEX_SHIFT 24
#define OFFSET 0x9e3779b97f4a7c15ull
#define ROUND1 0xbf58476d1ce4e5b9ull
#define ROUND2 0x94d049bb133111ebull
#define ROUND3 0xd6e8feb86659fd93ull

// One half of the mix: cheap on purpose, so that fill and verify stay bound by memory.
__device__ __forceinline__ u64 fold(u64 v, u64 round) {
    v *= round;
    return v ^ (v >> 32);
}

__device__ __forceinline__ void mix(u64 key, u64 index, u64& a, u64& b) {
    a = index << INDEX_SHIFT | CHECK;
    b = key;
    b ^= fold(a + OFFSET, ROUND1);
    a ^= fold(b, ROUND2);
    b ^= fold(a, ROUND3);
}

// Undoes mix. True if the check field says that this was a unit.
__device__ __forceinline__ bool unmix(u64 a, u64 b, u64& key, u64& index) {
    b ^= fold(a, ROUND3);
    a ^= fold(b, ROUND2);
    b ^= fold(a + OFFSET, ROUND1);
    key = b;
    index = a >> INDEX_SHIFT;
    return (a & CHECK_MASK) == CHECK;
}

// Loads past L1: the point of coherence of a device's memory is its L2.
__device__ __forceinline__ void load(const void* p, u64& a, u64& b) {
    asm volatile("ld.global.cg.v2.u64 {%0,%1},[%2];" : "=l"(a), "=l"(b) : "l"(p));
}
// Loads that no cache of the executing device may answer: for another device's memory.
__device__ __forceinline__ void load_system(const void* p, u64& a, u64& b) {
    asm volatile("ld.volatile.global.v2.u64 {%0,%1},[%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory");
}
__device__ __forceinline__ void store(void* p, u64 a, u64 b) {
    asm volatile("st.global.v2.u64 [%0],{%1,%2};" ::"l"(p), "l"(a), "l"(b) : "memory");
}
__device__ __forceinline__ u8 byte_of(u64 a, u64 b, u32 n) { return (u8)((n < 8 ? a : b) >> (8 * (n & 7))); }

// A range cut at unit boundaries.
struct Cut {
    u32 skew;   // byte of its unit at which the range starts
    u32 head;   // bytes before the first whole unit
    u64 units;  // whole units
    u32 tail;   // bytes after them
};

__device__ __forceinline__ Cut cut(const void* range, u64 bytes) {
    Cut c;
    c.skew = (u32)(u64)range & 15;
    const u32 head = (16 - c.skew) & 15;
    c.head = bytes < head ? (u32)bytes : head;
    c.units = (bytes - c.head) >> 4;
    c.tail = (u32)(bytes - c.head) & 15;
    return c;
}

// The first 32 threads of a grid care for the rims, one byte each. True if this thread has one: `offset` counts from the
// start of the range, `unit` from its first unit, `n` inside that.
__device__ __forceinline__ bool rim(const Cut& c, u64& offset, u64& unit, u32& n) {
    if (blockIdx.x || threadIdx.x >= 32) return false;
    const u32 t = threadIdx.x & 15;
    if (threadIdx.x < 16) {
        offset = t, unit = 0, n = c.skew + t;
        return t < c.head;
    }
    offset = c.head + (c.units << 4) + t, unit = (c.head != 0) + c.units, n = t;
    return t < c.tail;
}

// Writes the stream of `key` to `to`.
extern "C" __global__ void __launch_bounds__(THREADS) peerproof_fill(u8* to, u64 bytes, u64 first, u64 key) {
    const Cut c = cut(to, bytes);
    const u64 units = c.units;
    u64 offset, unit;
    u32 n;
    if (rim(c, offset, unit, n)) {
        u64 a, b;
        mix(key, first + unit, a, b);
        to[offset] = byte_of(a, b, n);
    }
    to += c.head;
    first += c.head != 0;
    for (u64 tile = (u64)blockIdx.x * TILE; tile < units; tile += (u64)gridDim.x * TILE) {
        const u64 i = tile + threadIdx.x;
        if (tile + TILE <= units) {
#pragma unroll
            for (u32 k = 0; k < UNROLL; k++) {
                u64 a, b;
                mix(key, first + i + k * THREADS, a, b);
                store(to + ((i + k * THREADS) << 4), a, b);
            }
        } else {
            for (u64 j = i; j < units; j += THREADS) {
                u64 a, b;
                mix(key, first + j, a, b);
                store(to + (j << 4), a, b);
            }
        }
    }
}

// What verify found. The host sets first to all ones and the rest to zero before.
struct Mismatch {
    u64 wrong;  // units that differ
    u64 first;  // lowest unit that differs, counted from the one that holds the first byte
    u64 last;   // highest one
};

// Compares and counts, nothing more: this is the path that runs at memory speed.
extern "C" __global__ void __launch_bounds__(THREADS)
    peerproof_verify(const u8* from, u64 bytes, u64 first, u64 key, Mismatch* out) {
    const Cut c = cut(from, bytes);
    const u64 units = c.units, lead = c.head != 0;
    u64 wrong = 0, low = ~0ull, high = 0;
    // Bytes of the rims that differ: a rim counts as one unit, however many of its bytes do.
    u64 offset, unit;
    u32 n;
    bool differs = false;
    if (rim(c, offset, unit, n)) {
        u64 a, b;
        mix(key, first + unit, a, b);
        differs = *(const volatile u8*)(from + offset) != byte_of(a, b, n);
    }
    if (blockIdx.x == 0 && threadIdx.x < 32) {
        const u32 votes = __ballot_sync(~0u, differs);
        if ((threadIdx.x & 15) == 0 && (votes >> threadIdx.x & 0xffff)) wrong = 1, low = high = threadIdx.x ? lead + units : 0;
    }
    from += c.head;
    first += lead;
    for (u64 tile = (u64)blockIdx.x * TILE; tile < units; tile += (u64)gridDim.x * TILE) {
        const u64 i = tile + threadIdx.x;
        if (tile + TILE <= units) {
            u64 a[UNROLL], b[UNROLL];
#pragma unroll
            for (u32 k = 0; k < UNROLL; k++) load(from + ((i + k * THREADS) << 4), a[k], b[k]);
#pragma unroll
            for (u32 k = 0; k < UNROLL; k++) {
                u64 x, y;
                mix(key, first + i + k * THREADS, x, y);
                if ((a[k] ^ x) | (b[k] ^ y)) {
                    const u64 at = lead + i + k * THREADS;
                    wrong++;
                    low = at < low ? at : low;
                    high = at > high ? at : high;
                }
            }
        } else {
            for (u64 j = i; j < units; j += THREADS) {
                u64 a, b, x, y;
                load(from + (j << 4), a, b);
                mix(key, first + j, x, y);
                if ((a ^ x) | (b ^ y)) {
                    const u64 at = lead + j;
                    wrong++;
                    low = at < low ? at : low;
                    high = at > high ? at : high;
                }
            }
        }
    }
    if (wrong) {
        atomicAdd(&out->wrong, wrong);
        atomicMin(&out->first, low);
        atomicMax(&out->last, high);
    }
}

#define ORIGINS 16
// Classes, in the order of judging; src/model/case.rs UnitCounts.
enum { EQUAL, POISON, ZERO, ONES, FEW_BITS, DISPLACED, STALE, FOREIGN, UNKNOWN, CLASSES };

struct Origin {
    u64 unit;   // where it was found, counted from `from`
    u64 skew;   // byte offset of the window inside that unit, 0 to 15
    u64 key;    // what the found unit says of itself
    u64 index;
};

struct Census {
    u64 count[CLASSES];
    u64 first[CLASSES];  // lowest unit of each class; all ones = none
    u64 last_wrong;      // highest unit that is not EQUAL
    s64 shift_min;       // displacement in bytes of DISPLACED units: found at minus belongs at
    s64 shift_max;
    u64 origins;         // how many units named an origin; the first ORIGINS are kept
    Origin origin[ORIGINS];
};

// Judges each whole unit of a buffer that verify condemned; `from` starts at a unit, and the host judges the rims.
// `run_mask` selects the run field of a key, `transfer_mask` the fields that one transfer keeps over its attempts (run,
// source, destination, mechanism). The host zeroes `out`, sets first[] and shift_min to their highest values and shift_max
// to its lowest.
extern "C" __global__ void __launch_bounds__(THREADS)
    peerproof_classify(const u8* from, u64 bytes, u64 first, u64 key, u64 poison_key, u64 run_mask,
                       u64 transfer_mask, Census* out) {
    const u64 units = bytes >> 4;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < units; i += (u64)gridDim.x * THREADS) {
        u64 a, b, x, y, px, py;
        load(from + (i << 4), a, b);
        mix(key, first + i, x, y);
        mix(poison_key, first + i, px, py);
        u32 found = UNKNOWN;
        if (a == x && b == y) found = EQUAL;
        else if (a == px && b == py) found = POISON;
        else if (!(a | b)) found = ZERO;
        else if (a == ~0ull && b == ~0ull) found = ONES;
        else if (__popcll(a ^ x) + __popcll(b ^ y) <= 8) found = FEW_BITS;
        else {
            u64 next_a = 0, next_b = 0;
            const bool has_next = i + 1 < units;
            if (has_next) load(from + ((i + 1) << 4), next_a, next_b);
            for (u32 skew = 0; skew < 16; skew++) {
                if (skew && !has_next) break;
                const u32 bits = 8 * (skew & 7);
                u64 w0 = skew < 8 ? a : b, w1 = skew < 8 ? b : next_a, w2 = skew < 8 ? next_a : next_b;
                const u64 wa = bits ? w0 >> bits | w1 << (64 - bits) : w0;
                const u64 wb = bits ? w1 >> bits | w2 << (64 - bits) : w1;
                u64 named, index;
                if (!unmix(wa, wb, named, index)) continue;
                if (named == key) {
                    found = DISPLACED;
                    const s64 shift = (s64)(((first + i) << 4) + skew) - (s64)(index << 4);
                    atomicMin(&out->shift_min, shift);
                    atomicMax(&out->shift_max, shift);
                } else if ((named ^ key) & run_mask) found = STALE;
                else if (((named ^ key) & transfer_mask) == 0) found = STALE;
                else found = FOREIGN;
                const u64 slot = atomicAdd(&out->origins, 1ull);
                if (slot < ORIGINS) {
                    Origin* o = &out->origin[slot];
                    o->unit = i;
                    o->skew = skew;
                    o->key = named;
                    o->index = index;
                }
                break;
            }
        }
        atomicAdd(&out->count[found], 1ull);
        atomicMin(&out->first[found], i);
        if (found != EQUAL) atomicMax(&out->last_wrong, i);
    }
}

// Loads of a copy: past every cache of the executing device when the source is another's memory.
template <bool SYSTEM>
__device__ __forceinline__ void load_for(const void* p, u64& a, u64& b) {
    if (SYSTEM) load_system(p, a, b);
    else load(p, a, b);
}

template <bool SYSTEM>
__device__ __forceinline__ void copy(u8* to, const u8* from, u64 bytes) {
    const Cut c = cut(to, bytes);
    const u64 units = c.units;
    u64 offset, unit;
    u32 n;
    if (rim(c, offset, unit, n)) *(volatile u8*)(to + offset) = *(const volatile u8*)(from + offset);
    to += c.head;
    from += c.head;
    for (u64 tile = (u64)blockIdx.x * TILE; tile < units; tile += (u64)gridDim.x * TILE) {
        const u64 i = tile + threadIdx.x;
        if (tile + TILE <= units) {
            u64 a[UNROLL], b[UNROLL];
#pragma unroll
            for (u32 k = 0; k < UNROLL; k++) load_for<SYSTEM>(from + ((i + k * THREADS) << 4), a[k], b[k]);
#pragma unroll
            for (u32 k = 0; k < UNROLL; k++) store(to + ((i + k * THREADS) << 4), a[k], b[k]);
        } else {
            for (u64 j = i; j < units; j += THREADS) {
                u64 a, b;
                load_for<SYSTEM>(from + (j << 4), a, b);
                store(to + (j << 4), a, b);
            }
        }
    }
}

// Copies by loads: the executing device reads `from`, another device's memory, and writes its own.
extern "C" __global__ void __launch_bounds__(THREADS) peerproof_copy_load(u8* to, const u8* from, u64 bytes) {
    copy<true>(to, from, bytes);
}

// Copies by stores: the executing device reads its own memory and writes `to`, another device's. The system fence makes
// the stores visible there before the kernel counts as finished.
extern "C" __global__ void __launch_bounds__(THREADS) peerproof_copy_store(u8* to, const u8* from, u64 bytes) {
    copy<false>(to, from, bytes);
    __threadfence_system();
}

// The same with stores of 4 bytes: neighbours that no 16-byte store can cover up. `to` and `from` start at the same byte
// of a word; what does not fill a word is stored byte by byte.
extern "C" __global__ void __launch_bounds__(THREADS) peerproof_copy_store4(u8* to, const u8* from, u64 bytes) {
    const u32 gap = (4 - ((u32)(u64)to & 3)) & 3;
    const u64 head = bytes < gap ? bytes : gap;
    const u64 words = (bytes - head) >> 2;
    const u32 tail = (u32)(bytes - head) & 3;
    const volatile u8* bytewise = from;
    if (blockIdx.x == 0 && threadIdx.x < head) to[threadIdx.x] = bytewise[threadIdx.x];
    to += head;
    from += head;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < words; i += (u64)gridDim.x * THREADS) {
        u32 word;
        asm volatile("ld.global.cg.u32 %0,[%1];" : "=r"(word) : "l"(from + (i << 2)));
        asm volatile("st.global.u32 [%0],%1;" ::"l"(to + (i << 2)), "r"(word) : "memory");
    }
    const u64 last = head + (words << 2) + threadIdx.x;
    if (blockIdx.x == 0 && threadIdx.x < tail) to[last - head] = bytewise[last];
    __threadfence_system();
}

// Atomics at system scope that turn the poison at `to` into the payload at `from`: only when each one took effect on what
// the owner had written does its unit name itself. Sum, exchange, compare-and-swap and exclusive or, as one unit's two
// 64-bit words or its four 32-bit words: eight ways, by the unit's index. `to` starts at a 4-byte word and ends at one;
// units that the range does not hold whole get the 32-bit ways. Only where the platform states native atomics.
extern "C" __global__ void __launch_bounds__(THREADS)
    peerproof_atomics(u8* to, const u8* from, u64 bytes, u64 first, u64 poison_key) {
    const u64 skew = (u64)to & 15;
    const u64 all = (skew + bytes + 15) >> 4;
    to -= skew;
    from -= skew;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < all; i += (u64)gridDim.x * THREADS) {
        u64 p[2];
        mix(poison_key, first + i, p[0], p[1]);
        const u32 way = (u32)(first + i) & 3;
        const bool whole = (i << 4) >= skew && ((i + 1) << 4) <= skew + bytes;
        if (whole && ((first + i) & 4)) {
            for (u32 k = 0; k < 2; k++) {
                u64* word = (u64*)(to + (i << 4)) + k;
                const u64 want = ((const volatile u64*)(from + (i << 4)))[k];
                if (way == 0) atomicAdd_system(word, want - p[k]);
                else if (way == 1) atomicExch_system(word, want);
                else if (way == 2) atomicCAS_system(word, p[k], want);
                else atomicXor_system(word, want ^ p[k]);
            }
            continue;
        }
        for (u32 k = 0; k < 4; k++) {
            const u64 at = (i << 4) + 4 * k;
            if (at < skew || at + 4 > skew + bytes) continue;
            u32* word = (u32*)(to + at);
            const u32 poison = (u32)(p[k >> 1] >> (32 * (k & 1)));
            const u32 want = *(const volatile u32*)(from + at);
            if (way == 0) atomicAdd_system(word, want - poison);
            else if (way == 1) atomicExch_system(word, want);
            else if (way == 2) atomicCAS_system(word, poison, want);
            else atomicXor_system(word, want ^ poison);
        }
    }
    __threadfence_system();
}

// Sums that each of two devices adds to one word of `peerproof_contend`; a power of two.
#define SHARES 64

// Half of a contest: owner and accessor run this at the same time on the same units, whole ones, and each adds half of what
// turns the poison into the payload, in SHARES steps a word. One lost step and the unit does not name itself.
extern "C" __global__ void __launch_bounds__(THREADS)
    peerproof_contend(u8* to, u64 bytes, u64 first, u64 key, u64 poison_key, u32 accessor) {
    const u64 adds = (bytes >> 3) * SHARES;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < adds; i += (u64)gridDim.x * THREADS) {
        const u64 word = i / SHARES;
        u64 x, y, p, q;
        mix(key, first + (word >> 1), x, y);
        mix(poison_key, first + (word >> 1), p, q);
        const u64 whole = word & 1 ? y - q : x - p;
        u64 step = whole / (2 * SHARES);
        if (accessor && i % SHARES == 0) step += whole % (2 * SHARES);
        atomicAdd_system((u64*)to + word, step);
    }
    __threadfence_system();
}
