// arch: compute_70
// The kernels of the integrity ladder. Headerless: NVRTC compiles this file with no include path.
//
// A unit is 16 bytes and names itself: a reversible mix of a key (run, source, destination, mechanism, attempt, role)
// and its own index, with a constant check field inside. The host twin is src/words.rs; tests hold both to the same
// vectors. Limits: addresses are 16-byte aligned; a tail shorter than a unit is written and compared byte by byte.

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

// Writes the units [first, first + bytes/16) of `key` to `to`, and the leading bytes of one more unit as tail.
extern "C" __global__ void __launch_bounds__(THREADS) peerproof_fill(u8* to, u64 bytes, u64 first, u64 key) {
    const u64 units = bytes >> 4;
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
    const u32 tail = (u32)bytes & 15;
    if (blockIdx.x == 0 && threadIdx.x < tail) {
        u64 a, b;
        mix(key, first + units, a, b);
        to[(units << 4) + threadIdx.x] = byte_of(a, b, threadIdx.x);
    }
}

// What verify found. The host sets first to all ones and the rest to zero before.
struct Mismatch {
    u64 wrong;  // units that differ
    u64 first;  // lowest unit that differs, counted from `from`
    u64 last;   // highest one
};

// Compares and counts, nothing more: this is the path that runs at memory speed.
extern "C" __global__ void __launch_bounds__(THREADS)
    peerproof_verify(const u8* from, u64 bytes, u64 first, u64 key, Mismatch* out) {
    const u64 units = bytes >> 4;
    u64 wrong = 0, low = ~0ull, high = 0;
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
                    const u64 at = i + k * THREADS;
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
                    wrong++;
                    low = j < low ? j : low;
                    high = j > high ? j : high;
                }
            }
        }
    }
    const u32 tail = (u32)bytes & 15;
    if (tail && blockIdx.x == 0 && threadIdx.x == 0) {
        u64 a, b;
        mix(key, first + units, a, b);
        bool same = true;
        for (u32 n = 0; n < tail; n++) same &= from[(units << 4) + n] == byte_of(a, b, n);
        if (!same) {
            wrong++;
            low = units < low ? units : low;
            high = units > high ? units : high;
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

// Judges each unit of a buffer that verify condemned. `run_mask` selects the run field of a key, `transfer_mask` the
// fields that one transfer keeps over its attempts (run, source, destination, mechanism). The host zeroes `out`, sets
// first[] and shift_min to their highest values and shift_max to its lowest.
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

// Copies by loads: the executing device reads `from`, another device's memory, and writes its own.
extern "C" __global__ void __launch_bounds__(THREADS) peerproof_copy_load(u8* to, const u8* from, u64 bytes) {
    const u64 units = bytes >> 4;
    for (u64 tile = (u64)blockIdx.x * TILE; tile < units; tile += (u64)gridDim.x * TILE) {
        const u64 i = tile + threadIdx.x;
        if (tile + TILE <= units) {
            u64 a[UNROLL], b[UNROLL];
#pragma unroll
            for (u32 k = 0; k < UNROLL; k++) load_system(from + ((i + k * THREADS) << 4), a[k], b[k]);
#pragma unroll
            for (u32 k = 0; k < UNROLL; k++) store(to + ((i + k * THREADS) << 4), a[k], b[k]);
        } else {
            for (u64 j = i; j < units; j += THREADS) {
                u64 a, b;
                load_system(from + (j << 4), a, b);
                store(to + (j << 4), a, b);
            }
        }
    }
    const u32 tail = (u32)bytes & 15;
    if (blockIdx.x == 0 && threadIdx.x < tail) to[(units << 4) + threadIdx.x] = from[(units << 4) + threadIdx.x];
}

// Copies by stores: the executing device reads its own memory and writes `to`, another device's. The system fence makes
// the stores visible there before the kernel counts as finished.
extern "C" __global__ void __launch_bounds__(THREADS) peerproof_copy_store(u8* to, const u8* from, u64 bytes) {
    const u64 units = bytes >> 4;
    for (u64 tile = (u64)blockIdx.x * TILE; tile < units; tile += (u64)gridDim.x * TILE) {
        const u64 i = tile + threadIdx.x;
        if (tile + TILE <= units) {
            u64 a[UNROLL], b[UNROLL];
#pragma unroll
            for (u32 k = 0; k < UNROLL; k++) load(from + ((i + k * THREADS) << 4), a[k], b[k]);
#pragma unroll
            for (u32 k = 0; k < UNROLL; k++) store(to + ((i + k * THREADS) << 4), a[k], b[k]);
        } else {
            for (u64 j = i; j < units; j += THREADS) {
                u64 a, b;
                load(from + (j << 4), a, b);
                store(to + (j << 4), a, b);
            }
        }
    }
    const u32 tail = (u32)bytes & 15;
    if (blockIdx.x == 0 && threadIdx.x < tail) to[(units << 4) + threadIdx.x] = from[(units << 4) + threadIdx.x];
    __threadfence_system();
}
