// arch: compute_70
// Kernels that wait, for measurements: a gate behind which work is queued before any of it may start, and the two sides of
// a flag's round trip. Headerless: NVRTC compiles this file with no include path.
//
// Both give up by their own clock. Every 32-bit access to global memory is a flag: stores release, loads acquire, both of
// system scope, none of them atomic. Everything else is 64 bits wide. tests/flags.rs holds the PTX to that.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned char u8;

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

// How a kernel ended. 0 is left for: not at all.
enum { DONE = 1, NEVER = 2, STOPPED = 3 };

// Ends when the host sets `word`, or after `limit` ns. report: how it ended, and the nanoseconds that it waited.
extern "C" __global__ void __launch_bounds__(1) peerproof_gate(u8* word, u64* report, u64 limit) {
    const u64 begin = now();
    u64 ended = DONE;
    for (u32 spin = 0; !see_flag(word); spin++) {
        if ((spin & 15) != 15) continue;
        if (now() - begin > limit) {
            ended = NEVER;
            break;
        }
    }
    // Read again: the host's work up to the opening lies before this moment.
    report[1] = now() - begin;
    report[0] = ended;
}

// One side of `rounds` round trips. `flag` lies here, `peer_flag` there; the host has zeroed both. The side that leads sends
// the number of the round and waits for its echo; the other one waits, then echoes. report: how it ended, rounds done,
// nanoseconds of those after the first `skip`.
extern "C" __global__ void __launch_bounds__(1) peerproof_round_trip(u8* flag, u8* peer_flag, u8* stop, u64* report,
                                                                     u64 leads, u64 rounds, u64 skip, u64 limit) {
    u64 ended = DONE, done = 0, begin = now();
    for (u64 round = 1; round <= rounds; round++) {
        if (round == skip + 1) begin = now();
        if (leads) send_flag(peer_flag, (u32)round);
        u64 waiting = 0;
        for (u32 spin = 0; (int)(see_flag(flag) - (u32)round) < 0; spin++) {
            if ((spin & 63) != 63) continue;
            if (!waiting) waiting = now();
            if (now() - waiting > limit) {
                ended = NEVER;
                send_flag(stop, 1);
                break;
            }
            if (see_flag(stop)) {
                ended = STOPPED;
                break;
            }
        }
        if (ended != DONE) break;
        if (!leads) send_flag(peer_flag, (u32)round);
        done = round;
    }
    report[2] = now() - begin;
    report[1] = done;
    report[0] = ended;
}
