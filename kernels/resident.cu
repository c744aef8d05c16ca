// arch: compute_70
// Kernels that stay resident and wait for each other: rung 5. Headerless: NVRTC compiles this file with no include path.
//
// Two of them, one on each side of a link, exchange payload and then flag, both ways, round after round. Each block is a
// channel of its own. The inbox of a side has two slots for each channel; round r uses slot r & 1. No slot is overwritten
// before it was judged: a side sends round r + 2 only after it saw the flag of round r + 1, and that flag leaves only after
// round r was judged. So the peer is at most one round ahead, and needs no other acknowledgement.
//
// Every 32-bit access to global memory in this file is a flag (or the stop word): stores release, loads acquire, both of
// system scope, none of them atomic, because peers without native atomics lose those. Everything else is 64 bits wide.
// tests/flags.rs holds the PTX to that.
//
// The words are those of integrity.cu; `attempt` in the key counts rounds here, so that an old slot names its round.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned char u8;

#define THREADS 128

#define CHECK 0xb5c96dull
#define INDEX_SHIFT 24
#define ATTEMPT_SHIFT 6
#define OFFSET 0x9e3779b97f4a7c15ull
#define ROUND1 0xbf58476d1ce4e5b9ull
#define ROUND2 0x94d049bb133111ebull
#define ROUND3 0xd6e8feb86659fd93ull

// Bytes from one channel's flag to the next: no two in a line of any cache.
#define FLAG_STRIDE 128

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

__device__ __forceinline__ void store(void* p, u64 a, u64 b) {
    asm volatile("st.global.v2.u64 [%0],{%1,%2};" ::"l"(p), "l"(a), "l"(b) : "memory");
}
// No cache may answer with what was there before: these bytes came over a link.
__device__ __forceinline__ void load_system(const void* p, u64& a, u64& b) {
    asm volatile("ld.volatile.global.v2.u64 {%0,%1},[%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory");
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

// How a channel ended. 0 is left for: not at all.
enum { DONE = 1, NEVER = 2, STOPPED = 3 };

// One channel's report; the host zeroes it and sets `epoch`.
struct Report {
    u64 epoch;         // flags count from here on; afterwards: the last flag that was sent
    u64 ended;         // DONE, NEVER or STOPPED
    u64 judged;        // rounds whose payload was judged
    u64 wrong_rounds;  // rounds whose payload was wrong when the flag was there
    u64 late_rounds;   // of those: rounds whose payload was right a little later
    u64 kept_round;    // the round that `evidence` is of; 0: none
    u64 kept_late;     // whether that one became right
    u64 kept_after;    // nanoseconds until it did, or until it was given up
    u64 odd_flags;     // flags that were neither this round's nor the next one's
    u64 odd_flag;      // the first of them
    u64 odd_round;     // and its round
    u64 waited;        // nanoseconds of the last wait
};

// Exchanges `rounds` rounds of `slot` bytes a channel. `inbox`: both slots of all channels, here; `outbox`: the peer's.
// `evidence`: three slots a channel: as last seen, as kept at its flag, as read again at the end of that round's patience.
// `stop`: a word in host memory that ends the exchange for both sides; whoever gives up sets it.
// A round that is wrong at its flag is read again for `patience` ns, until one round stayed wrong.
extern "C" __global__ void __launch_bounds__(THREADS)
    peerproof_resident(u8* inbox, u8* outbox, u8* flags, u8* peer_flags, Report* reports, u8* evidence, u8* stop,
                       u64 key_in, u64 key_out, u64 slot, u64 rounds, u64 limit, u64 patience) {
    __shared__ u32 ended;
    __shared__ u32 over;
    const u64 channel = blockIdx.x, channels = gridDim.x;
    const u64 units = slot >> 4, first = channel * units;
    const u8* flag = flags + channel * FLAG_STRIDE;
    u8* peer_flag = peer_flags + channel * FLAG_STRIDE;
    u8* seen = evidence + channel * 3 * slot;
    u8* kept = seen + slot;
    u8* again = kept + slot;
    Report* report = reports + channel;
    const u32 epoch = (u32)report->epoch;
    u64 judged = 0, wrong_rounds = 0, late_rounds = 0, kept_round = 0, kept_late = 0, kept_after = 0;
    u64 odd_flags = 0, odd_flag = 0, odd_round = 0, waited = 0;
    bool settled = false;  // some round stayed wrong: the evidence is complete
    if (threadIdx.x == 0) ended = DONE;
    for (u64 round = 1; round <= rounds; round++) {
        const u64 place = (round & 1) * channels * slot + channel * slot;
        const u64 count = round << ATTEMPT_SHIFT;
        for (u64 i = threadIdx.x; i < units; i += THREADS) {
            u64 a, b;
            mix(key_out + count, first + i, a, b);
            store(outbox + place + (i << 4), a, b);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            const u32 want = epoch + (u32)round;
            send_flag(peer_flag, want);
            const u64 begin = now();
            for (u32 spin = 0;; spin++) {
                const u32 value = see_flag(flag);
                // Signed: the peer may be ahead, and the count wraps.
                if ((int)(value - want) >= 0) {
                    if (value - want > 1 && !odd_flags++) {
                        odd_flag = value;
                        odd_round = round;
                    }
                    break;
                }
                if ((spin & 63) != 63) continue;
                waited = now() - begin;
                if (waited > limit) {
                    ended = NEVER;
                    send_flag(stop, 1);
                    break;
                }
                if (see_flag(stop)) {
                    ended = STOPPED;
                    break;
                }
            }
        }
        __syncthreads();
        if (ended != DONE) break;
        const u8* arrived = inbox + place;
        u32 wrong = 0;
        for (u64 i = threadIdx.x; i < units; i += THREADS) {
            u64 a, b, x, y;
            load_system(arrived + (i << 4), a, b);
            mix(key_in + count, first + i, x, y);
            if ((a ^ x) | (b ^ y)) wrong = 1;
            if (!settled) store(seen + (i << 4), a, b);
        }
        judged = round;
        if (!__syncthreads_or(wrong)) continue;
        wrong_rounds++;
        if (settled) continue;
        const u64 begin = now();
        bool late = false;
        for (;;) {
            if (threadIdx.x == 0) over = now() - begin > patience;
            wrong = 0;
            for (u64 i = threadIdx.x; i < units; i += THREADS) {
                u64 a, b, x, y;
                load_system(arrived + (i << 4), a, b);
                mix(key_in + count, first + i, x, y);
                if ((a ^ x) | (b ^ y)) wrong = 1;
                store(again + (i << 4), a, b);
            }
            late = !__syncthreads_or(wrong);
            const bool enough = over;
            __syncthreads();
            if (late || enough) break;
        }
        late_rounds += late;
        // What stays wrong outranks what was late.
        if (!kept_round || !late) {
            kept_round = round;
            kept_late = late;
            kept_after = now() - begin;
            for (u64 i = threadIdx.x; i < units; i += THREADS) {
                u64 a, b;
                load_system(seen + (i << 4), a, b);
                store(kept + (i << 4), a, b);
            }
        }
        settled = !late;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        // Whoever was stopped in round r had sent its flag.
        report->epoch = epoch + (u32)(ended == DONE ? rounds : judged + 1);
        report->ended = ended;
        report->judged = judged;
        report->wrong_rounds = wrong_rounds;
        report->late_rounds = late_rounds;
        report->kept_round = kept_round;
        report->kept_late = kept_late;
        report->kept_after = kept_after;
        report->odd_flags = odd_flags;
        report->odd_flag = odd_flag;
        report->odd_round = odd_round;
        report->waited = waited;
    }
}
