// arch: compute_70
// Micro all-reduces: rung 6. Headerless: NVRTC compiles this file with no include path.
//
// Every rank calls the same kernel with the same count and the same grid; block b of a rank works with block b of the
// others. Every sum starts at +0 and adds in rank order in single precision (islands: beside that kernel), so all ranks
// get the same bits.
//
// Epochs. No argument counts calls, because a replayed graph would repeat it. A rank keeps a count for each possible block
// in its own memory; block b reads its own and at the end advances it and those that this grid does not use, so that all of
// them always say how many calls there were, whatever grid the next call has.
//
// Slots. What ranks leave for each other goes by turns into two sets of slots, by the parity of the epoch. Two are enough,
// and nothing is acknowledged: a rank ends call e + 1 only when it has something of every rank's call e + 1, so every rank
// has ended call e and read all that it needed of it, before anybody writes call e + 2 over it. (So a count is never 0,
// unless there is but one rank.) For the same reason the
// input may be overwritten as soon as the kernel has ended: others only ever read copies of it.
//
// Flags. Every 32-bit access to global memory is a flag (or the stop word): stores release, loads acquire, both of system
// scope, none of them atomic, because peers without native atomics lose those. Everything else is 64 or 16 bits wide. The
// words of peerproof_reduce_words alone need no flag: each access of 64 bits carries data and the epoch it belongs to
// (docs/decisions/0009). tests/flags.rs holds the PTX to that. Flags are compared as signed differences: they count on
// through zero.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned char u8;

#define THREADS 512  // of a block, at most
#define BLOCKS 256   // of a rank, at most
#define RANKS 8      // at most
#define PHASES 3
#define TICK 24      // a thread that waits asks the stop word every 2^TICK nanoseconds, 17 ms
// A block's flags of one phase, one for each rank, share a sector.
#define FLAGS (PHASES * BLOCKS * RANKS * 4)

enum { FP16 = 0, BF16 = 1, FP32 = 2 };
enum { NEVER = 1, STOPPED = 2 };

// What a rank keeps for itself, in its own memory. The host sets all of it to ones, and `given_up` to zero.
struct State {
    u64 epochs[BLOCKS];
    // The first wait that each block gave up: how << 56 | rank waited for << 48 | phase << 40 | microseconds waited; epoch.
    u64 given_up[BLOCKS][2];
};

// What a thread knows of its rank.
struct Rank {
    u8* box[RANKS];  // mailboxes in rank order
    u32 rank, ranks, epoch;
    State* state;
    u8* stop;
    u64 room;   // bytes of a slot
    u64 limit;  // nanoseconds of a wait
    // Of the wait under way: when it began, looks in vain, and when the stop word was last asked, in ticks since `begin`.
    u64 begin;
    u32 spin, asked;
};

__device__ __forceinline__ void store(void* p, const u64 (&v)[2]) {
    asm volatile("st.global.v2.u64 [%0],{%1,%2};" ::"l"(p), "l"(v[0]), "l"(v[1]) : "memory");
}
// No cache may answer with what was there before: these bytes may have come over a link.
__device__ __forceinline__ void load(const void* p, u64 (&v)[2]) {
    asm volatile("ld.volatile.global.v2.u64 {%0,%1},[%2];" : "=l"(v[0]), "=l"(v[1]) : "l"(p) : "memory");
}
__device__ __forceinline__ void load(const void* p, u64 (&v)[1]) {
    asm volatile("ld.volatile.global.u64 %0,[%1];" : "=l"(v[0]) : "l"(p) : "memory");
}
__device__ __forceinline__ void store(void* p, const u64 (&v)[1]) {
    asm volatile("st.global.u64 [%0],%1;" ::"l"(p), "l"(v[0]) : "memory");
}
// Words that carry their own epoch: two accesses of 64 bits, each whole by itself, in whatever order.
__device__ __forceinline__ void store_words(void* p, u64 a, u64 b) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0],{%1,%2};" ::"l"(p), "l"(a), "l"(b) : "memory");
}
__device__ __forceinline__ void load_words(const void* p, u64& a, u64& b) {
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0,%1},[%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory");
}
__device__ __forceinline__ void send_flag(void* p, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0],%1;" ::"l"(p), "r"(value) : "memory");
}
__device__ __forceinline__ u32 see_flag(const void* p) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0,[%1];" : "=r"(value) : "l"(p) : "memory");
    return value;
}
// Nanoseconds.
__device__ __forceinline__ u64 now() {
    u64 t;
    asm volatile("mov.u64 %0,%globaltimer;" : "=l"(t)::"memory");
    return t;
}

// Both conversions, then a choice: cheaper than to branch for each element.
__device__ __forceinline__ float widen16(u32 dtype, u16 bits) {
    float x;
    asm("cvt.f32.f16 %0,%1;" : "=f"(x) : "h"(bits));
    return dtype == BF16 ? __uint_as_float((u32)bits << 16) : x;
}
// To nearest, ties to even.
__device__ __forceinline__ u16 narrow16(u32 dtype, float x) {
    const u32 bits = __float_as_uint(x);
    u16 half;
    asm("cvt.rn.f16.f32 %0,%1;" : "=h"(half) : "f"(x));
    return dtype == BF16 ? (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16) : half;
}
__device__ __forceinline__ float widen(u32 dtype, u32 bits) {
    return dtype == FP32 ? __uint_as_float(bits) : widen16(dtype, (u16)bits);
}
__device__ __forceinline__ u32 narrow(u32 dtype, float x) {
    return dtype == FP32 ? __float_as_uint(x) : narrow16(dtype, x);
}
__device__ __forceinline__ u64 width(u32 dtype) { return dtype == FP32 ? 4 : 2; }

// Sums of what N accesses of 64 bits hold.
template <int N>
struct Sum {
    float x[4 * N];
};
template <int N>
__device__ __forceinline__ void clear(Sum<N>& sum) {
#pragma unroll
    for (int k = 0; k < 4 * N; k++) sum.x[k] = 0;
}
template <int N>
__device__ __forceinline__ void add(Sum<N>& sum, u32 dtype, const u64 (&v)[N]) {
    if (dtype == FP32) {
#pragma unroll
        for (int k = 0; k < 2 * N; k++) sum.x[k] += __uint_as_float((u32)(v[k / 2] >> 32 * (k % 2)));
    } else {
#pragma unroll
        for (int k = 0; k < 4 * N; k++) sum.x[k] += widen16(dtype, (u16)(v[k / 4] >> 16 * (k % 4)));
    }
}
template <int N>
__device__ __forceinline__ void rounded(const Sum<N>& sum, u32 dtype, u64 (&v)[N]) {
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = 0;
    if (dtype == FP32) {
#pragma unroll
        for (int k = 0; k < 2 * N; k++) v[k / 2] |= (u64)__float_as_uint(sum.x[k]) << 32 * (k % 2);
    } else {
#pragma unroll
        for (int k = 0; k < 4 * N; k++) v[k / 4] |= (u64)narrow16(dtype, sum.x[k]) << 16 * (k % 4);
    }
}

// The bytes from `at` on of a vector of `bytes` bytes, zero beyond its end. A vector may start at any element; where it does
// not start at a whole access, and at its end, this goes by 16 bits at a time, in loops that stay small.
template <int N>
__device__ __forceinline__ void take(const u8* from, u64 at, u64 bytes, u64 (&v)[N]) {
    if (((u64)from & 8 * N - 1) == 0 && at + 8 * N <= bytes) return load(from + at, v);
#pragma unroll
    for (int n = 0; n < N; n++) {
        v[n] = 0;
#pragma unroll 1
        for (int k = 6; k >= 0; k -= 2) {
            const u64 here = at + 8 * n + k;
            u16 part = 0;
            if (here < bytes) asm volatile("ld.volatile.global.u16 %0,[%1];" : "=h"(part) : "l"(from + here) : "memory");
            v[n] = v[n] << 16 | part;
        }
    }
}
template <int N>
__device__ __forceinline__ void put(u8* to, u64 at, u64 bytes, const u64 (&v)[N]) {
    if (((u64)to & 8 * N - 1) == 0 && at + 8 * N <= bytes) return store(to + at, v);
#pragma unroll
    for (int n = 0; n < N; n++) {
        u64 rest = v[n];
#pragma unroll 1
        for (int k = 0; k < 8; k += 2, rest >>= 16) {
            const u64 here = at + 8 * n + k;
            if (here < bytes) asm volatile("st.global.u16 [%0],%1;" ::"l"(to + here), "h"((u16)rest) : "memory");
        }
    }
}

// The mailbox of a rank, by arithmetic: an array indexed by a variable would lie in memory, and so would one of whose places
// a choice is made.
__device__ __forceinline__ u8* box(const Rank& me, u32 rank) {
    u64 at = 0;
#pragma unroll
    for (u32 k = 0; k < RANKS; k++) at |= (u64)me.box[k] & (rank == k ? ~0ull : 0);
    return (u8*)at;
}
// In a mailbox: the slot of area `area` that rank `from` fills in this call.
__device__ __forceinline__ u64 slot(const Rank& me, u32 area, u32 from) {
    return FLAGS + ((u64)(area * 2 + (me.epoch & 1)) * me.ranks + from) * me.room;
}
__device__ __forceinline__ u64 flag(u32 phase, u32 from) { return ((phase * BLOCKS + blockIdx.x) * RANKS + from) * 4; }

__device__ __forceinline__ Rank enter(u32 rank, u32 ranks, u8* m0, u8* m1, u8* m2, u8* m3, u8* m4, u8* m5, u8* m6,
                                      u8* m7, State* state, u8* stop, u64 room, u64 limit) {
    u64 epoch[1];
    load(&state->epochs[blockIdx.x], epoch);
    Rank me = {{m0, m1, m2, m3, m4, m5, m6, m7}, rank, ranks, (u32)epoch[0] + 1, state, stop, room, limit, 0, 0, 0};
    return me;
}
// Advances the epochs of this block and of all that no block of this grid reads.
__device__ __forceinline__ void leave(const Rank& me) {
    __syncthreads();
    const u64 epoch[1] = {me.epoch};
    for (u64 b = blockIdx.x + (u64)threadIdx.x * gridDim.x; b < BLOCKS; b += (u64)blockDim.x * gridDim.x)
        store(&me.state->epochs[b], epoch);
}

__device__ __forceinline__ void begin_wait(Rank& me) { me.begin = me.spin = me.asked = 0; }
// One more look in vain. True when it is enough: by the clock, or because the stop word says so.
//
// The stop word lies in host memory, and all threads of all blocks may wait: their reads together take long, and must not make
// the other ranks wait so long that these ask as well, or one delay keeps every later call slow. (Asked after 1,024 looks, about
// 0.5 ms, 32,768 threads took 0.65 ms for it, and calls of 5 us took 660 from the first late one on: docs/hardware-log.md.)
__device__ __forceinline__ bool hopeless(Rank& me, u32 from, u32 phase) {
    if (++me.spin & 63) return false;
    const u64 time = now();
    if (!me.begin) me.begin = time;
    const bool late = time - me.begin > me.limit;
    if (!late) {
        const u32 tick = (u32)(time - me.begin >> TICK);
        if (tick == me.asked) return false;
        me.asked = tick;
        if (!see_flag(me.stop)) return false;
    }
    u64* report = me.state->given_up[blockIdx.x];
    u64 known[1];
    load(report, known);
    if (!known[0]) {
        const u64 waited = (time - me.begin) / 1000;
        const u64 what[1] = {(u64)(late ? NEVER : STOPPED) << 56 | (u64)from << 48 | (u64)phase << 40 | waited};
        const u64 epoch[1] = {me.epoch};
        store(report + 1, epoch);
        store(report, what);
    }
    if (late) send_flag(me.stop, 1);
    return true;
}

// All threads of the block: what they wrote is announced in `phase`, and what others did is waited for. A thread that takes
// part tells rank `to` and waits for rank `from`. True when a wait was given up.
__device__ __forceinline__ bool meet(Rank& me, u32 phase, bool part, u32 to, u32 from) {
    bool lost = false;
    __syncthreads();
    if (part) {
        send_flag(box(me, to) + flag(phase, me.rank), me.epoch);
        const u8* seen = box(me, me.rank) + flag(phase, from);
        begin_wait(me);
        // Signed: who waited for us may be a call ahead, and the count wraps.
        while ((int)(see_flag(seen) - me.epoch) < 0)
            if (hopeless(me, from, phase)) {
                lost = true;
                break;
            }
    }
    return __syncthreads_or(lost);
}
// With ranks `first` to `first + ranks - 1`: a thread for each but this one.
__device__ __forceinline__ bool meet_all(Rank& me, u32 phase, u32 first, u32 ranks) {
    const u32 other = first + threadIdx.x;
    return meet(me, phase, threadIdx.x < ranks && other != me.rank, other, other);
}

// Adds up unit `i` of what `members` ranks from `first` on sent into area 0 of the mailbox, and this rank's own from byte `at`
// of its vector. All loads are under way before the first is needed.
__device__ __forceinline__ void add_up(const Rank& me, const u8* own, const u8* in, u64 bytes, u32 dtype, u64 i, u64 at,
                                       u32 first, u32 members, u64 (&v)[2]) {
    u64 all[RANKS][2];
#pragma unroll
    for (u32 k = 0; k < RANKS; k++) {
        if (k >= members) break;
        if (first + k != me.rank) load(own + slot(me, 0, first + k) + i * 16, all[k]);
    }
    take(in, at, bytes, v);
    Sum<2> sum;
    clear(sum);
#pragma unroll
    for (u32 k = 0; k < RANKS; k++) {
        if (k >= members) break;
        const bool mine = first + k == me.rank;
        const u64 term[2] = {mine ? v[0] : all[k][0], mine ? v[1] : all[k][1]};
        add(sum, dtype, term);
    }
    rounded(sum, dtype, v);
}

#define PARAMETERS                                                                                               \
    u8 *in, u8 *out, u64 count, u32 dtype, u32 rank, u32 ranks, u8 *m0, u8 *m1, u8 *m2, u8 *m3, u8 *m4, u8 *m5,  \
        u8 *m6, u8 *m7, State *state, u8 *stop, u64 room, u64 limit
#define ENTER                                                                                         \
    Rank me = enter(rank, ranks, m0, m1, m2, m3, m4, m5, m6, m7, state, stop, room, limit);           \
    const u64 bytes = count * width(dtype)

// One-shot push of small vectors: what is written carries its epoch, so the reader needs no flag and the writer no fence.
extern "C" __global__ void __launch_bounds__(THREADS) peerproof_reduce_words(PARAMETERS) {
    ENTER;
    const u64 words = (bytes + 7) / 8, stride = (u64)gridDim.x * blockDim.x;
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 mark = (u64)me.epoch << 32;
#pragma unroll 1
    for (u64 i = first; i < words; i += stride) {
        u64 v[1];
        take(in, i * 8, bytes, v);
        const u64 low = mark | (u32)v[0], high = mark | v[0] >> 32;
#pragma unroll
        for (u32 r = 0; r < RANKS; r++) {
            if (r >= ranks) break;
            if (r != rank) store_words(me.box[r] + slot(me, 0, rank) + i * 16, low, high);
        }
    }
    const u8* own = box(me, rank);
#pragma unroll 1
    for (u64 i = first; i < words; i += stride) {
        u64 low[RANKS], high[RANKS], v[1];
        take(in, i * 8, bytes, v);
#pragma unroll
        for (u32 r = 0; r < RANKS; r++) {
            if (r >= ranks) break;
            if (r != rank) load_words(own + slot(me, 0, r) + i * 16, low[r], high[r]);
        }
        Sum<1> sum;
        clear(sum);
        bool lost = false;
#pragma unroll
        for (u32 r = 0; r < RANKS; r++) {
            if (r >= ranks) break;
            begin_wait(me);
            // Equal, not later: a slot of this parity is written again only after this call.
            while (r != rank && !lost && ((low[r] ^ mark) >> 32 | (high[r] ^ mark) >> 32)) {
                lost = hopeless(me, r, 0);
                load_words(own + slot(me, 0, r) + i * 16, low[r], high[r]);
            }
            const u64 theirs[1] = {r == rank ? v[0] : (u64)(u32)low[r] | high[r] << 32};
            add(sum, dtype, theirs);
        }
        if (lost) break;
        rounded(sum, dtype, v);
        put(out, i * 8, bytes, v);
    }
    leave(me);
}

// One-shot push: whole vectors to all others, then a flag for each block.
extern "C" __global__ void __launch_bounds__(THREADS) peerproof_reduce_push(PARAMETERS) {
    ENTER;
    const u64 units = (bytes + 15) / 16, each = (units + gridDim.x - 1) / gridDim.x;
    const u64 first = blockIdx.x * each, last = first + each < units ? first + each : units;
#pragma unroll 1
    for (u64 i = first + threadIdx.x; i < last; i += blockDim.x) {
        u64 v[2];
        take(in, i * 16, bytes, v);
#pragma unroll
        for (u32 r = 0; r < RANKS; r++) {
            if (r >= ranks) break;
            if (r != rank) store(me.box[r] + slot(me, 0, rank) + i * 16, v);
        }
    }
    if (!meet_all(me, 0, 0, ranks)) {
        const u8* own = box(me, rank);
#pragma unroll 1
    for (u64 i = first + threadIdx.x; i < last; i += blockDim.x) {
            u64 v[2];
            add_up(me, own, in, bytes, dtype, i, i * 16, 0, ranks, v);
            put(out, i * 16, bytes, v);
        }
    }
    leave(me);
}

// One-shot pull: a copy of the vector in the own mailbox, which the others read after a flag for each block.
extern "C" __global__ void __launch_bounds__(THREADS) peerproof_reduce_pull(PARAMETERS) {
    ENTER;
    const u64 units = (bytes + 15) / 16, each = (units + gridDim.x - 1) / gridDim.x;
    const u64 first = blockIdx.x * each, last = first + each < units ? first + each : units;
    // Only the owner fills its mailbox, so there are but two slots.
    const u64 place = FLAGS + (me.epoch & 1) * me.room;
    u8* own = box(me, rank) + place;
#pragma unroll 1
    for (u64 i = first + threadIdx.x; i < last; i += blockDim.x) {
        u64 v[2];
        take(in, i * 16, bytes, v);
        store(own + i * 16, v);
    }
    if (!meet_all(me, 0, 0, ranks)) {
#pragma unroll 1
    for (u64 i = first + threadIdx.x; i < last; i += blockDim.x) {
            u64 v[RANKS][2];
#pragma unroll
            for (u32 r = 0; r < RANKS; r++) {
                if (r >= ranks) break;
                load(me.box[r] + place + i * 16, v[r]);
            }
            Sum<2> sum;
            clear(sum);
#pragma unroll
            for (u32 r = 0; r < RANKS; r++) {
                if (r >= ranks) break;
                add(sum, dtype, v[r]);
            }
            rounded(sum, dtype, v[0]);
            put(out, i * 16, bytes, v[0]);
        }
    }
    leave(me);
}

// The units of `owner`'s part of the vector that this block works on; a part has `part` units.
#define UNITS_OF(owner)                                                                                  \
    _Pragma("unroll 1") for (u64 i = low + threadIdx.x, at = ((owner) * part + i) * 16; i < high && at < bytes;              \
         i += blockDim.x, at += (u64)blockDim.x * 16)

// Reduce-scatter, then all-gather. In rounds (STAGED), a block sends to one rank and receives from one at any instant.
template <bool STAGED>
__device__ __forceinline__ void two_shot(PARAMETERS) {
    ENTER;
    const u64 units = (bytes + 15) / 16, part = (units + ranks - 1) / ranks, each = (part + gridDim.x - 1) / gridDim.x;
    const u64 low = blockIdx.x * each, high = low + each < part ? low + each : part;
    u8* own = box(me, rank);
    bool lost = false;
#pragma unroll 1
    for (u32 k = 1; k < ranks && !lost; k++) {
        const u32 to = (rank + k) % ranks;
        u8* there = box(me, to) + slot(me, 0, rank);
        UNITS_OF(to) {
            u64 v[2];
            take(in, at, bytes, v);
            store(there + i * 16, v);
        }
        if (STAGED) lost = meet(me, 0, threadIdx.x == 0, to, (rank + ranks - k) % ranks);
    }
    if (!STAGED) lost = meet_all(me, 0, 0, ranks);
    if (!lost) UNITS_OF(rank) {
        u64 v[2];
        add_up(me, own, in, bytes, dtype, i, at, 0, ranks, v);
        put(out, at, bytes, v);
        if (STAGED) store(own + slot(me, 1, rank) + i * 16, v);
        else {
#pragma unroll
            for (u32 r = 0; r < RANKS; r++) {
                if (r >= ranks) break;
                if (r != rank) store(me.box[r] + slot(me, 1, rank) + i * 16, v);
            }
        }
    }
#pragma unroll 1
    for (u32 k = 1; STAGED && k < ranks && !lost; k++) {
        const u32 to = (rank + k) % ranks;
        u8* there = box(me, to) + slot(me, 1, rank);
        UNITS_OF(rank) {
            u64 v[2];
            load(own + slot(me, 1, rank) + i * 16, v);
            store(there + i * 16, v);
        }
        lost = meet(me, 1, threadIdx.x == 0, to, (rank + ranks - k) % ranks);
    }
    if (!STAGED && !lost) lost = meet_all(me, 1, 0, ranks);
#pragma unroll 1
    for (u32 k = 1; k < ranks && !lost; k++) {
        const u32 owner = (rank + k) % ranks;
        const u8* here = own + slot(me, 1, owner);
        UNITS_OF(owner) {
            u64 v[2];
            load(here + i * 16, v);
            put(out, at, bytes, v);
        }
    }
    leave(me);
}
extern "C" __global__ void __launch_bounds__(THREADS) peerproof_reduce_two_shot(PARAMETERS) {
    two_shot<false>(in, out, count, dtype, rank, ranks, m0, m1, m2, m3, m4, m5, m6, m7, state, stop, room, limit);
}
extern "C" __global__ void __launch_bounds__(THREADS) peerproof_reduce_staged(PARAMETERS) {
    two_shot<true>(in, out, count, dtype, rank, ranks, m0, m1, m2, m3, m4, m5, m6, m7, state, stop, room, limit);
}

// Two islands, ranks 0 to ranks / 2 - 1 and the rest. Each rank owns a part in its island and adds it up there in rank
// order; the sum, rounded to the element type, crosses to the same place of the other island; the lower island's sum and the
// upper island's are added, rounded again, and handed out inside. Between the islands nothing else moves.
extern "C" __global__ void __launch_bounds__(THREADS) peerproof_reduce_islands(PARAMETERS) {
    ENTER;
    const u32 members = ranks > 1 ? ranks / 2 : 1, first = rank / members * members, place = rank - first;
    const u32 across = (rank + members) % ranks;
    const u64 units = (bytes + 15) / 16, part = (units + members - 1) / members, each = (part + gridDim.x - 1) / gridDim.x;
    const u64 low = blockIdx.x * each, high = low + each < part ? low + each : part;
    u8* own = box(me, rank);
#pragma unroll 1
    for (u32 k = 1; k < members; k++) {
        const u32 to = (place + k) % members;
        u8* there = box(me, first + to) + slot(me, 0, rank);
        UNITS_OF(to) {
            u64 v[2];
            take(in, at, bytes, v);
            store(there + i * 16, v);
        }
    }
    bool lost = meet_all(me, 0, first, members);
    if (!lost) {
        u8* there = box(me, across) + slot(me, 1, rank);
        UNITS_OF(place) {
            u64 v[2];
            add_up(me, own, in, bytes, dtype, i, at, first, members, v);
            store(there + i * 16, v);
            store(own + slot(me, 1, rank) + i * 16, v);
        }
        lost = meet(me, 1, threadIdx.x == 0, across, across);
    }
    if (!lost) {
        UNITS_OF(place) {
            u64 lower[2], upper[2];
            load(own + slot(me, 1, place) + i * 16, lower);
            load(own + slot(me, 1, place + members) + i * 16, upper);
            Sum<2> sum;
            clear(sum);
            add(sum, dtype, lower);
            add(sum, dtype, upper);
            rounded(sum, dtype, lower);
            put(out, at, bytes, lower);
#pragma unroll
            for (u32 r = 0; r < RANKS; r++) {
                if (r >= first + members) break;
                if (r >= first && r != rank) store(me.box[r] + slot(me, 2, rank) + i * 16, lower);
            }
        }
        lost = meet_all(me, 2, first, members);
    }
#pragma unroll 1
    for (u32 k = 1; k < members && !lost; k++) {
        const u32 owner = (place + k) % members;
        const u8* here = own + slot(me, 2, first + owner);
        UNITS_OF(owner) {
            u64 v[2];
            load(here + i * 16, v);
            put(out, at, bytes, v);
        }
    }
    leave(me);
}

// Holds a stream until the host opens the gate, a word in its memory, so that what is queued behind it starts at once.
extern "C" __global__ void __launch_bounds__(32) peerproof_reduce_gate(u8* gate, u64 limit) {
    if (threadIdx.x) return;
    const u64 begin = now();
    while (!see_flag(gate) && now() - begin < limit);
}

// What vectors hold, and judging. The host's twin is src/probe/reduction/exact.rs.

#define GOLDEN 0x9e3779b97f4a7c15ull
#define ROUND1 0xbf58476d1ce4e5b9ull
#define ROUND2 0x94d049bb133111ebull
#define POISON 0x7a5b7a5b

__device__ __forceinline__ u64 stir(u64 v, u64 round) {
    v ^= v >> 32;
    v *= round;
    return v ^ (v >> 29);
}
// What all elements of one rank in one call share.
__device__ __forceinline__ u64 key(u64 seed, u32 rank, u64 call) { return stir(seed + (call * RANKS + rank) * GOLDEN, ROUND1); }

// The bits of an element: an integer that stays exact in sums over all ranks, or any number of 8 binades.
__device__ __forceinline__ u32 element(u32 dtype, u32 random, u64 key, u64 index) {
    const u64 v = stir((index ^ key) * GOLDEN, ROUND2);
    const u32 low = (u32)v, high = (u32)(v >> 32);
    if (!random) {
        const u32 most = dtype == BF16 ? 31 : dtype == FP16 ? 255 : (1 << 20) - 1;
        return narrow(dtype, (float)((int)((u64)high * (2 * most + 1) >> 32) - (int)most));
    }
    if (dtype == FP32) return (low & 0x807fffff) | (120 + (high & 7)) << 23;
    if (dtype == BF16) return (low & 0x807f) | (120 + (high & 7)) << 7;
    return (low & 0x83ff) | (8 + (high & 7)) << 10;
}

// The sum of element `index` where rank `other` takes part with call `theirs`, or not at all (theirs == ~0). No such rank:
// all take part with `call`.
__device__ __forceinline__ u32 expected(u32 dtype, u32 random, u32 islands, u32 ranks, u64 seed, u64 call, u64 index,
                                        u32 other, u64 theirs) {
    float sum = 0, lower = 0;
#pragma unroll 1
    for (u32 r = 0; r < ranks; r++) {
        if (islands && r == ranks / 2) {
            lower = widen(dtype, narrow(dtype, sum));
            sum = 0;
        }
        const u64 of = r == other ? theirs : call;
        if (of != ~0ull) sum += widen(dtype, element(dtype, random, key(seed, r, of), index));
    }
    if (islands) sum = 0.0f + lower + widen(dtype, narrow(dtype, sum));
    return narrow(dtype, sum);
}

// Call counts work as epochs do: one for each possible block, all of them always alike.
__device__ __forceinline__ void advance(u64* calls, u64 call) {
    __syncthreads();
    for (u64 b = blockIdx.x + (u64)threadIdx.x * gridDim.x; b < BLOCKS; b += (u64)blockDim.x * gridDim.x) calls[b] = call + 1;
}

// Writes what `rank` puts into the call that `calls` counts, and poison into an output that lies elsewhere.
extern "C" __global__ void __launch_bounds__(THREADS)
    peerproof_reduce_fill(u8* in, u8* out, u64 count, u32 dtype, u32 rank, u64 seed, u32 random, u64* calls) {
    const u64 call = calls[blockIdx.x], mine = key(seed, rank, call);
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
        const u32 bits = element(dtype, random, mine, i);
        if (dtype == FP32) {
            ((u32*)in)[i] = bits;
            if (out != in) ((u32*)out)[i] = POISON;
        } else {
            ((u16*)in)[i] = (u16)bits;
            if (out != in) ((u16*)out)[i] = (u16)POISON;
        }
    }
    advance(calls, call);
}

// What verify found over many calls. The host sets `first` to ones and all else to zero.
struct Verdict {
    u64 wrong;        // elements
    u64 first;        // lowest call << 40 | element
    u64 got;          // bits of an element << 32 | low bits of its index: of `first`, unless another was seen at the same time
    u64 wrong_calls;
    u64 last_wrong;   // call + 1
    u64 judged;       // calls
    // Of the wrong elements of the first wrong call, which is nearest to the cause: all, poison, zero.
    u64 blamed;
    u64 poison;
    u64 zero;
    // And by rank: right if its contribution is left out; if it is that of the call before; of two calls before, which is
    // what a slot holds that was not written.
    u64 instead[3][RANKS];
};

extern "C" __global__ void __launch_bounds__(THREADS)
    peerproof_reduce_verify(const u8* out, u64 count, u32 dtype, u32 ranks, u64 seed, u32 random, u32 islands, u64* calls,
                            Verdict* verdict) {
    const u64 call = calls[blockIdx.x];
    const u64 last_wrong = *(const volatile u64*)&verdict->last_wrong;
    const bool blame = last_wrong == 0 || last_wrong == call + 1;
    bool any = false;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
        // Past L1, which may hold older lines.
        const u32 got = dtype == FP32 ? ((const volatile u32*)out)[i] : ((const volatile u16*)out)[i];
        if (got == expected(dtype, random, islands, ranks, seed, call, i, ~0u, 0)) continue;
        any = true;
        atomicAdd(&verdict->wrong, 1ull);
        const u64 place = call << 40 | i;
        if (atomicMin(&verdict->first, place) > place) verdict->got = (u64)got << 32 | (u32)i;
        if (!blame) continue;
        atomicAdd(&verdict->blamed, 1ull);
        if (got == (dtype == FP32 ? POISON : POISON & 0xffff)) atomicAdd(&verdict->poison, 1ull);
        if (got == 0) atomicAdd(&verdict->zero, 1ull);
#pragma unroll 1
        for (u32 k = 0; k < 3 * ranks; k++) {
            const u32 r = k % ranks, how = k / ranks;
            const u64 theirs = how == 0 ? ~0ull : call - how;
            if (got == expected(dtype, random, islands, ranks, seed, call, i, r, theirs)) atomicAdd(&verdict->instead[how][r], 1ull);
        }
    }
    if (__syncthreads_or(any) && threadIdx.x == 0 && atomicMax(&verdict->last_wrong, call + 1) <= call)
        atomicAdd(&verdict->wrong_calls, 1ull);
    if (blockIdx.x == 0 && threadIdx.x == 0) verdict->judged++;
    advance(calls, call);
}
